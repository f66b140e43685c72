std = "luajit"
max_line_length = 120
exclude_files = { "build*", ".cache" }

-- Specs of ours, and of the examples that users copy.
files["spec"] = { std = "+busted", globals = { "arg" } } -- spec/run.lua hands busted its own arguments
files["examples/*/spec"] = { std = "+busted" }
files["**/*_spec.lua"] = { std = "+busted" }
