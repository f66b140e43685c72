/* core.c - the one loop of this process, and its end. */
#include "lua/core.h"

#include "base/log.h"
#include "base/text.h"
#include "lua/dict.h"
#include "lua/vm.h"

static mw_loop *process_loop;

mw_loop *mw_core_loop(void) {
    if (!process_loop) {
        process_loop = mw_loop_new();
        mw_loop_before_wait(process_loop, mw_log_flush);
    }
    return process_loop;
}

void mw_core_shutdown(void) {
    mw_log_flush();
    mw_loop_free(process_loop);
    process_loop = NULL;
    mw_dict_clear_all();
    mw_text_cache_clear();
    mw_modules_forget();
}
