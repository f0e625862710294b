/*
 * The pause container: it holds a pod's namespaces, reaps what ends as a child
 * of it when the pod shares its PID namespace, and leaves on SIGINT or SIGTERM.
 * It needs nothing of the C library, so that it costs one page of stack and one
 * of code for each pod; a Go program would cost over a megabyte.
 *
 * As PID 1 the kernel drops signals whose action is the default unless they are
 * blocked: they are blocked here and taken one by one.
 */
#include <asm/unistd.h>

typedef unsigned long word;

#if defined(__x86_64__)
static long call(long n, word a, word b, word c, word d)
{
	long ret;
	register word r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(ret)
		: "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
static long call(long n, word a, word b, word c, word d)
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
static long call(long n, word a, word b, word c, word d)
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
#error "pause: no system call known for this architecture"
#endif

enum { BLOCK = 0, ANY_CHILD = -1, NO_HANG = 1, SIGNAL_INT = 2, SIGNAL_TERM = 15, SIGNAL_CHILD = 17 };

#define BIT(sig) (1ULL << ((sig) - 1))

__attribute__((noreturn)) void _start(void)
{
	unsigned long long wanted = BIT(SIGNAL_INT) | BIT(SIGNAL_TERM) | BIT(SIGNAL_CHILD);

	call(__NR_rt_sigprocmask, BLOCK, (word)&wanted, 0, sizeof wanted);
	for (;;) {
		long sig = call(__NR_rt_sigtimedwait, (word)&wanted, 0, 0, sizeof wanted);

		if (sig == SIGNAL_INT || sig == SIGNAL_TERM)
			for (;;)
				call(__NR_exit_group, 0, 0, 0, 0);
		while (call(__NR_wait4, (word)ANY_CHILD, 0, NO_HANG, 0) > 0)
			;
	}
}
