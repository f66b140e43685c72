local mw = require "moonwire"
return { handle = function(msg) mw.log.info("welcome sent", { to = msg.data.email }) end }
