// Prints facts of a vendor's header: the size of each struct, the offset of each field, the value
// of each constant.
//
// The list of facts is in facts.inc. `cargo xtask abi-nvshmem` writes facts.inc from the Rust
// declarations for the header's version. If the header lacks a name of the list, compilation fails,
// and the check fails too.

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
