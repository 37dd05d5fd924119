// Stands in for the toolkit's file, of which NCCL's host headers use only that these types exist.
#ifndef PEERWEAVE_ABI_CUDA_FP16_H
#define PEERWEAVE_ABI_CUDA_FP16_H
struct half { unsigned short bits; };
struct half2 { half both[2]; };
#endif
