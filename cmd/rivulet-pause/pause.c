/*
 * The pause container: it holds a pod's namespaces, reaps what ends as a child
 * of it when the pod shares its PID namespace, and leaves on SIGINT or SIGTERM.
 * It needs nothing of the C library, so that it costs one page of stack and one
 * of code for each pod; a Go program would cost over a megabyte.
 *
 * As PID 1 the kernel drops signals whose action is the default unless they are
 * blocked: they are blocked here and taken one by one.
 */
#include "call.h"

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
