package vcluster

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/fabric/httpserver"
)

const (
	// holdEvery is the interval of answers to connections that wait for a start: Kubernetes clients abandon a handshake
	// after 10 s.
	holdEvery = 4 * time.Second
	// comeAgain is the Retry-After of these answers in seconds, and soon that while the process starts; clients retry
	// ten times.
	comeAgain, soon = 5, 1
	// maxHeld bounds the connections of one virtual cluster that are answered at a time.
	maxHeld = 64
	// maxObject is more than an API server takes in one request, bytes.
	maxObject = 4 << 20
)

// held is a listener for connections that were accepted elsewhere.
type held chan net.Conn

func (h held) Accept() (net.Conn, error) {
	if c, ok := <-h; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (held) Close() error   { return nil }
func (held) Addr() net.Addr { return &net.TCPAddr{} }

// hold answers the connections that wait in the socket with Retry-After, until stop. A start shorter than holdEvery
// causes no such answer. The answer needs no credential, and nothing of a request is stored.
func (c *cluster) hold(l *os.File) (stop func()) {
	h, done := make(held, maxHeld), make(chan struct{})
	srv := httpserver.New(httpserver.Waiting, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxObject)) // a client still writing reads no answer
		after := comeAgain
		if c.brief().PID != 0 {
			after = soon
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", strconv.Itoa(after))
		w.WriteHeader(http.StatusTooManyRequests)
		_ = json.NewEncoder(w).Encode(apierrors.NewTooManyRequests("virtual cluster "+c.name+" is being started; try again in a moment", after).Status())
	}), slog.New(slog.DiscardHandler))
	srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(c.tlsDir(), "apiserver.crt"), filepath.Join(c.tlsDir(), "apiserver.key"))
		return &pair, err
	}}
	srv.SetKeepAlivesEnabled(false)             // one request
	go func() { _ = srv.ServeTLS(h, "", "") }() // it ends with h
	go func() {
		defer close(h)
		tick := time.NewTicker(holdEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				accept(l, func(fd int) bool {
					request(c)
					f := os.NewFile(uintptr(fd), "waiting")
					defer f.Close()
					if conn, err := net.FileConn(f); err == nil {
						h <- conn
					}
					return len(h) < maxHeld
				})
			}
		}
	}()
	return func() { close(done) }
}

// accept passes the connections that wait in a listening socket to f while f returns more.
func accept(l *os.File, f func(fd int) (more bool)) {
	raw, err := l.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.SetNonblock(int(fd), true) != nil {
			return
		}
		for {
			c, _, err := unix.Accept4(int(fd), unix.SOCK_CLOEXEC)
			if err != nil || !f(c) {
				return
			}
		}
	})
}

// refuse closes the waiting connections, because no process will answer them.
func refuse(l *os.File) {
	accept(l, func(fd int) bool { return unix.Close(fd) == nil })
}
