package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/fabric/netmon"
	"rivulet/fabric/tunnel/paths"
)

// Streams arrive on the control port, which the supervisor holds, and on additional ports if configured. The supervisor
// reads only the requested protocol and hands the connection over, with the bytes already read: then the stream belongs
// to this process, and survives a restart of the supervisor.

// StreamProtocol is the ALPN name of streams.
const StreamProtocol = paths.StreamProtocol

// maxBegun bounds the bytes already read of a connection that is handed over.
const maxBegun = 64 << 10

func streamSocket(socket string) string { return socket + ".streams" }

// HandOver gives a connection that requested StreamProtocol, TCP or of a unix socket, to the data plane's process. Begun are the bytes already
// read. The caller closes its own copy of it.
func (c *Controller) HandOver(conn net.Conn, begun []byte) error {
	file, ok := conn.(interface{ File() (*os.File, error) })
	if !ok {
		return fmt.Errorf("tunnel: a %T cannot be handed over", conn)
	}
	f, err := file.File()
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	defer f.Close()
	to, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	defer unix.Close(to)
	limit := unix.NsecToTimeval(int64(hungAfter))
	if err := unix.SetsockoptTimeval(to, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	raw, err := f.SyscallConn() // File.Fd would make the connection a blocking one, there too
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = unix.Sendmsg(to, begun, unix.UnixRights(int(fd)), &unix.SockaddrUnix{Name: streamSocket(c.cfg.Socket)}, 0)
	})
	if err := errors.Join(err, sent); err != nil {
		return fmt.Errorf("tunnel: hand a stream over: %w", err)
	}
	return nil
}

// takeStreams receives the connections of HandOver until ctx ends.
func (s *Server) takeStreams(ctx context.Context, socket string) error {
	os.Remove(streamSocket(socket)) // of a process that was killed: this one has the lock
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: streamSocket(socket)})
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	context.AfterFunc(ctx, func() { l.Close(); os.Remove(streamSocket(socket)) })
	go func() {
		begun, rights := make([]byte, maxBegun), make([]byte, unix.CmsgSpace(4))
		for {
			n, oobn, _, _, err := l.ReadMsgUnix(begun, rights)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				s.log.Warn("a stream could not be taken over", "err", err)
				continue
			}
			conn, err := received(rights[:oobn])
			if err != nil {
				s.log.Warn("a stream could not be taken over", "err", err)
				continue
			}
			s.accept(conn, slices.Clone(begun[:n]))
		}
	}()
	return nil
}

func received(rights []byte) (net.Conn, error) {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("tunnel: no connection came along (%v)", err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("tunnel: no connection came along (%v)", err)
	}
	f := os.NewFile(uintptr(fds[0]), "stream")
	defer f.Close()
	return net.FileConn(f)
}

func (s *Server) accept(conn net.Conn, begun []byte) {
	s.mu.Lock()
	dev := s.dev
	s.mu.Unlock()
	if dev == nil {
		conn.Close()
		return
	}
	dev.Accept(conn, begun)
}

// listenStreams opens the configured ports, and closes all others. It returns why one cannot be opened; this does not
// delay other changes.
func (s *Server) listenStreams(ports []uint16) (problem string) {
	for port, l := range s.listeners {
		if !slices.Contains(ports, port) {
			l.Close()
			delete(s.listeners, port)
		}
	}
	for _, port := range ports {
		if s.listeners[port] != nil {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			problem = fmt.Sprintf("the port TCP %d, for streams, cannot be opened (%v%s)", port, reason(err), netmon.Listener("tcp", int(port)))
			continue
		}
		if s.listeners == nil {
			s.listeners = map[uint16]net.Listener{}
		}
		s.listeners[port] = l
		go func() {
			for {
				conn, err := l.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil { // for example no file descriptors
					time.Sleep(100 * time.Millisecond)
					continue
				}
				s.accept(conn, nil)
			}
		}()
	}
	return problem
}

func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
