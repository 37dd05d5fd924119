// Prints what a vendor's header says: the size of each struct, the offset of each field, the number behind each name.
//
// What to ask is in facts.inc, which `cargo xtask abi-nvshmem` writes from what the Rust side believes of the header's version. A name that the
// header does not have stops the compiler, and so the check.

#include <cstddef>
#include <cstdio>

#include <nvshmem_host.h>

#define SIZE(Type) std::printf("size %s %zu\n", #Type, sizeof(Type));
#define OFFSET(Type, field) std::printf("offset %s.%s %zu\n", #Type, #field, offsetof(Type, field));
#define VALUE(name) std::printf("value %s %lld\n", #name, static_cast<long long>(name));

int main() {
#include "facts.inc"
  return 0;
}
