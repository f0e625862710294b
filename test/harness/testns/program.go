package testns

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const nsVar = "NETROOM_NS"

// Program makes a program that is this test binary inside the namespace, with env
// (KEY=value) by which its TestMain knows what to be. A process of its own is what
// a server with goroutines needs: theirs run on threads that are outside the room.
func Program(t testing.TB, ns netns.NsHandle, env ...string) (path string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=/proc/%d/fd/%d %s exec %s \"$@\"\n", nsVar, os.Getpid(), int(ns), strings.Join(env, " "), self)
	path = filepath.Join(t.TempDir(), "program")
	// What is forked while the file is open to be written has it open too, until it
	// calls another program; the kernel then refuses to run it ("text file busy").
	syscall.ForkLock.RLock()
	err = os.WriteFile(path, []byte(script), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Enter is called first in the TestMain of who uses Program: it takes the process
// into its namespace.
func Enter() {
	at := os.Getenv(nsVar)
	if at == "" {
		return
	}
	os.Unsetenv(nsVar)
	runtime.LockOSThread() // a thread enters, exec makes it the whole process
	ns, err := netns.GetFromPath(at)
	if err == nil {
		err = netns.Set(ns)
	}
	var self string
	if err == nil {
		self, err = os.Executable()
	}
	if err == nil {
		err = unix.Exec(self, os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "testns:", err)
	os.Exit(1)
}
