package rpc

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Connections of a device that lost its power end soon, though it never says so:
// what counts against its limits here is gone before it comes back often.
func TestAcceptedConnectionsEndUnheard(t *testing.T) {
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if got != int(unheard.Milliseconds()) {
		t.Errorf("an accepted connection waits %d ms for an answer, want %s", got, unheard)
	}
}
