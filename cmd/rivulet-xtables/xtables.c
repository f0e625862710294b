/*
 * The bundled iptables comes as dynamic programs with the C library and the
 * loader they were built for, and must run from any folder: a loader's path
 * inside a program is absolute. So the names iptables, iptables-save and so on
 * are links to this one, which asks where it lies and becomes
 *
 *	<bundle>/lib/ld.so --library-path <bundle>/lib --argv0 <name> <bundle>/lib/xtables-<backend>-multi ...
 *
 * with <bundle>/<backend>/ being its own folder. It is started several times
 * a minute and needs nothing of the C library.
 */
#include "call.h"

enum { LONGEST = 4096, CURRENT_DIR = -100, STANDARD_ERROR = 2, FAILED = 127 };

static word length(const char *s)
{
	word n = 0;

	while (s[n])
		n++;
	return n;
}

static const char *last_part(const char *path)
{
	const char *last = path;

	for (; *path; path++)
		if (*path == '/')
			last = path + 1;
	return last;
}

/* join writes a and b to out, which has room for both. */
static char *join(char *out, const char *a, const char *b)
{
	char *p = out;

	while (*a)
		*p++ = *a++;
	while (*b)
		*p++ = *b++;
	*p = 0;
	return out;
}

__attribute__((noreturn)) static void fail(const char *what)
{
	static const char before[] = "rivulet-xtables: ", after[] = "; start rivulet again, it puts its helpers in order\n";

	call(__NR_write, STANDARD_ERROR, (word)before, sizeof before - 1, 0);
	call(__NR_write, STANDARD_ERROR, (word)what, length(what), 0);
	call(__NR_write, STANDARD_ERROR, (word)after, sizeof after - 1, 0);
	for (;;)
		call(__NR_exit_group, FAILED, 0, 0, 0);
}

/* begin is called with the stack as the kernel leaves it: argc, argv, 0, environ, 0. */
__attribute__((noreturn, used)) void begin(char **stack)
{
	word argc = (word)stack[0];
	char **argv = stack + 1, **env = argv + argc + 1;
	/* Not static: older kernels, as 5.10, do not start a program for arm64 whose segment of data is without content. */
	char self[LONGEST], lib[LONGEST + 16], loader[LONGEST + 16], program[LONGEST + 64], plugins[LONGEST + 32];
	const char *name, *backend;
	word i, n = 0;
	long got;

	got = call(__NR_readlinkat, (word)CURRENT_DIR, (word)"/proc/self/exe", (word)self, sizeof self - 1);
	if (got <= 0)
		fail("/proc/self/exe cannot be read: is /proc mounted?");
	self[got] = 0;
	name = last_part(argc > 0 ? argv[0] : self);

	/* self is <bundle>/<backend>/run: cut it into <bundle>/ and <backend>. */
	*((char *)last_part(self) - 1) = 0;
	backend = last_part(self);
	join(program, "lib/xtables-", backend);
	join(plugins, program, "-multi");
	*(char *)backend = 0;
	join(program, self, plugins);
	join(lib, self, "lib");
	join(loader, self, "lib/ld.so");
	join(plugins, "XTABLES_LIBDIR=", lib);

	while (env[n])
		n++;
	{
		char *arguments[argc + 8], *environment[n + 2];
		char **a = arguments;

		*a++ = loader;
		*a++ = "--inhibit-cache";
		*a++ = "--library-path";
		*a++ = lib;
		*a++ = "--argv0";
		*a++ = (char *)name;
		*a++ = program;
		for (i = 1; i < argc; i++)
			*a++ = argv[i];
		*a = 0;
		/* The first of two of a name counts, so ours comes before what the caller has. */
		environment[0] = plugins;
		for (i = 0; i <= n; i++)
			environment[i + 1] = env[i];
		call(__NR_execve, (word)loader, (word)arguments, (word)environment, 0);
	}
	fail(loader);
}

#if defined(__x86_64__)
__asm__(".text\n.global _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");
#elif defined(__aarch64__)
__asm__(".text\n.global _start\n_start:\n\tmov x0, sp\n\tb begin\n");
#elif defined(__arm__)
__asm__(".text\n.arm\n.global _start\n.type _start, %function\n_start:\n\tmov r0, sp\n\tbic sp, sp, #7\n\tbl begin\n");
#endif
