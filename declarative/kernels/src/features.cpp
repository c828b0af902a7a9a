// Which instructions the processor has: a library by itself, which runs everywhere.

// The best set of instructions: 0, 1 or 2 for the base, AVX2 and AVX-512.
extern "C" __attribute__((visibility("default"))) long long core_instruction_set() {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return 2;
    if (__builtin_cpu_supports("avx2")) return 1;
#endif
    return 0;
}
