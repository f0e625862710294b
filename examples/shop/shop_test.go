package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A port that refuses at first is dialled again, until the caller's time is over.
func TestDialTriesAgain(t *testing.T) {
	l := listener(t)
	at := l.Addr().String()
	l.Close()
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := dial(short, "tcp", at); err == nil {
		t.Fatal("a closed port was reached")
	}
	opened := make(chan error, 1)
	time.AfterFunc(3*dialTry/2, func() {
		again, err := net.Listen("tcp", at)
		if err == nil {
			t.Cleanup(func() { again.Close() })
		}
		opened <- err
	})
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := dial(long, "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
}

// A service that is told to end answers what it has begun.
func TestStopLetsRequestsEnd(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	slowly := func(context.Context, message) (message, error) {
		close(begun)
		<-goOn
		return message{"done": true}, nil
	}
	refuse := func(context.Context, message) (message, error) { return nil, status.Error(codes.InvalidArgument, "no") }
	d, l := grpcDoor("", "test", map[string]method{"Slow": slowly, "Refuse": refuse}), listener(t)
	go d.serve(l)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	out := &structpb.Struct{}
	if err := conn.Invoke(t.Context(), "/shop.test/Refuse", &structpb.Struct{}, out); status.Code(err) != codes.InvalidArgument {
		t.Errorf("refused with %v", err)
	}
	answered := make(chan error, 1)
	go func() { answered <- conn.Invoke(t.Context(), "/shop.test/Slow", &structpb.Struct{}, out) }()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- d.stop(t.Context()) }()
	close(goOn)
	if err := <-answered; err != nil || !out.Fields["done"].GetBoolValue() {
		t.Errorf("%v, %v", out, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Each tenth checkout fails, and load says so.
func TestLoadCounts(t *testing.T) {
	var n atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/checkout", func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%10 == 0 {
			http.Error(w, "no", http.StatusBadGateway)
		}
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stdout
	os.Stdout = in
	err = load([]string{"-shop", s.URL, "-rate", "50", "-for", "1s", "-sockets", "0"})
	os.Stdout = was
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(out)
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	visits := int(n.Load())
	if r.Requests != 3*visits || r.Failed != visits/10 || r.Orders != visits-r.Failed || visits < 20 {
		t.Errorf("%d visits: %s", visits, text)
	}
	for reason, times := range r.Reasons {
		if !strings.HasPrefix(reason, "502") || times != r.Failed {
			t.Errorf("%d failed by %q", times, reason)
		}
	}
}
