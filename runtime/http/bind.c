/* bind.c - a request for a handler that waits: its end completes a waiter of the vm. Called by FFI, so it
 * must not run Lua; mw_vm_complete is called later, from the loop. */
#include "http/internal.h"

void mw_vm_complete(struct mw_vm *vm, double waiter); /* runtime/lua/vm.c */

static void complete(mw_http_request *r, void *vm) { mw_vm_complete(vm, r->waiter); }

mw_http_request *mw_http_start_for(struct mw_vm *vm, mw_http *h, const mw_http_spec *spec, double waiter) {
    mw_http_request *r = mw_http_start(h, spec, complete, vm);
    r->waiter = waiter;
    return r;
}
