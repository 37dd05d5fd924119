// Prints what a vendor's header declares: the size of each struct, the offset of each field, and the value of each name.
//
// The list of names is in facts.inc, which `cargo xtask abi` writes from the Rust declarations for the header's version. If the header lacks a
// name, the compilation fails, and so does the check.

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <nccl.h>
#ifdef PROBE_DEVICE
#include <nccl_device.h>
#endif

#define SIZE(Type) std::printf("size %s %zu\n", #Type, sizeof(Type));
#define OFFSET(Type, field) std::printf("offset %s.%s %zu\n", #Type, #field, offsetof(Type, field));
#define VALUE(name) std::printf("value %s %lld\n", #name, static_cast<long long>(name));

int main() {
#include "facts.inc"
  return 0;
}
