// Stands in for the toolkit's file, of which NCCL's host headers use only that these types exist.
#ifndef PEERWEAVE_ABI_CUDA_BF16_H
#define PEERWEAVE_ABI_CUDA_BF16_H
#define __CUDA_BF16_TYPES_EXIST__
struct __nv_bfloat16 { unsigned short bits; };
struct __nv_bfloat162 { __nv_bfloat16 both[2]; };
#endif
