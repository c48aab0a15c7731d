/* A function of PyTorch's own libc10, which its other libraries ask whether a TorchDispatchMode is active
   (c10/core/impl/TorchDispatchModeTLS.cpp). Autograd sums gradients out of place in any mode, and in place otherwise
   (ATen/TensorSubclassLikeUtils.h: isTensorSubclassLike; torch/csrc/autograd/input_buffer.cpp). The mode that computes
   values for host code (startup/vramplan_values.py) must not change that, so libtorch_cpu, where autograd is, does not
   see it. libtorch_python, which calls the mode, does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static bool is_autograd(void *caller) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libtorch_cpu");
}

bool _ZN3c104impl21dispatch_mode_enabledEv(void) {
  static bool (*enabled)(void);
  static int64_t (*active_modes)(void);
  if (!enabled) {
    void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return false;
    active_modes = (int64_t (*)(void))dlsym(library, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv");
    enabled = (bool (*)(void))dlsym(library, "_ZN3c104impl21dispatch_mode_enabledEv");
    if (!active_modes || !enabled) return false;
  }
  if (active_modes() == 1 && is_autograd(__builtin_return_address(0))) return false;
  return enabled();
}
