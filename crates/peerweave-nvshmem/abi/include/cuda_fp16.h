#pragma once
struct __half { unsigned short bits; };
typedef __half half;
