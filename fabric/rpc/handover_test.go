package rpc

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"rivulet/fabric/httpserver"
)

// replay is a connection whose beginning was read by somebody else.
type replay struct {
	net.Conn
	begun []byte
}

func (r *replay) Read(b []byte) (int, error) {
	if len(r.begun) > 0 {
		n := copy(b, r.begun)
		r.begun = r.begun[n:]
		return n, nil
	}
	return r.Conn.Read(b)
}

// Who asks for the other protocol gets another TLS server on the same connection, by
// its descriptor; everybody else gets HTTP, as if nothing were there.
func TestHandover(t *testing.T) {
	id := identity(t, 1)
	other := identity(t, 2)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := Handover{Protocol: "test/1", To: func(conn net.Conn, begun []byte) error {
		if len(begun) > 1<<14 {
			return errors.New("too much was read")
		}
		f, err := conn.(*net.TCPConn).File()
		if err != nil {
			return err
		}
		copied, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return err
		}
		go func() {
			c := tls.Server(&replay{Conn: copied, begun: begun}, &tls.Config{Certificates: []tls.Certificate{other.Certificate}, NextProtos: []string{"test/1"}})
			defer c.Close()
			io.Copy(c, c)
		}()
		return nil
	}}
	server := NewServer(httpserver.Peers, id, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }), slog.New(slog.DiscardHandler))
	h.Watch(server.TLSConfig)
	go server.ServeTLS(h.Listen(l), "", "")
	t.Cleanup(func() { server.Close() })

	for range 20 { // and whatever is closed there does not close it here
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"test/1"}})
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if string(c.ConnectionState().PeerCertificates[0].Raw) != string(other.Certificate.Certificate[0]) {
			t.Fatal("the wrong server answered")
		}
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		var b [5]byte
		if _, err := io.ReadFull(c, b[:]); err != nil || string(b[:]) != "hello" {
			t.Fatalf("%q, %v", b, err)
		}
		c.Close()
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: ClientTLS(other, id.ID)}, Timeout: 10 * time.Second}
	resp, err := client.Get("https://" + l.Addr().String() + "/")
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%v, %v", resp, err)
	}
}
