/*
 * System calls of C programs that have no C library, for each architecture that
 * Rivulet is built for.
 */
#ifndef RIVULET_CALL_H
#define RIVULET_CALL_H

#include <asm/unistd.h>

typedef unsigned long word;

#if defined(__x86_64__)
static inline long call(long n, word a, word b, word c, word d)
{
	long ret;
	register word r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(ret)
		: "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
static inline long call(long n, word a, word b, word c, word d)
{
	register long x8 __asm__("x8") = n;
	register word x0 __asm__("x0") = a;
	register word x1 __asm__("x1") = b;
	register word x2 __asm__("x2") = c;
	register word x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return (long)x0;
}
#elif defined(__arm__)
static inline long call(long n, word a, word b, word c, word d)
{
	register long r7 __asm__("r7") = n;
	register word r0 __asm__("r0") = a;
	register word r1 __asm__("r1") = b;
	register word r2 __asm__("r2") = c;
	register word r3 __asm__("r3") = d;
	__asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3) : "memory");
	return (long)r0;
}
#else
#error "no system call known for this architecture"
#endif

#endif
