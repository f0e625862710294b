package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// dialTry is how long a replica has to accept a connection. Then the Service's address is dialled again, which may lead
	// to another replica: nothing was sent yet, so this repeats no request.
	dialTry = 250 * time.Millisecond
	// callTimeout bounds one call to another service, dialling included.
	callTimeout = 5 * time.Second
)

// retries is how often a call that changes nothing is repeated after a failure (SHOP_RETRIES, none by itself).
var retries, _ = strconv.Atoi(os.Getenv("SHOP_RETRIES"))

var seconds = promauto.NewHistogramVec(prometheus.HistogramOpts{
	Name: "shop_request_seconds", Help: "Time that requests took.", Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
}, []string{"method", "code"})

func observe(method, code string, begun time.Time) {
	seconds.WithLabelValues(method, code).Observe(time.Since(begun).Seconds())
}

// dial connects, and tries again until the context ends.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	for {
		try, cancel := context.WithTimeout(ctx, dialTry)
		c, err := new(net.Dialer).DialContext(try, network, address)
		cancel()
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond): // one that refuses does so at once
		}
	}
}

type message = map[string]any

// method is one of a gRPC service. All messages are of type google.protobuf.Struct: there is no code to generate.
type method func(context.Context, message) (message, error)

func grpcDoor(port, name string, methods map[string]method) door {
	s := grpc.NewServer()
	d := grpc.ServiceDesc{ServiceName: "shop." + name, HandlerType: (*any)(nil)}
	for m, f := range methods {
		full := name + "/" + m
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: m, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			begun, in := time.Now(), &structpb.Struct{}
			if err := decode(in); err != nil {
				return nil, err
			}
			out, err := f(ctx, in.AsMap())
			observe(full, status.Code(err).String(), begun)
			if err != nil {
				return nil, err
			}
			return structpb.NewStruct(out)
		}})
	}
	s.RegisterService(&d, nil)
	return door{port, s.Serve, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, s.Stop)()
		s.GracefulStop()
		return nil
	}}
}

// call calls a method on a connection of its own: the Service's proxy balances connections, so each call finds a replica
// that answers, and none waits for one that is gone.
func call(ctx context.Context, service, method string, in message) (message, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+service+":8080", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	request, err := structpb.NewStruct(in)
	if err != nil {
		return nil, err
	}
	answer := &structpb.Struct{}
	if err := conn.Invoke(ctx, "/shop."+service+"/"+method, request, answer, grpc.WaitForReady(true)); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", service, method, err)
	}
	return answer.AsMap(), nil
}

// read is call for a method that changes nothing, which may be repeated.
func read(ctx context.Context, service, method string, in message) (out message, err error) {
	for range retries + 1 {
		if out, err = call(ctx, service, method, in); err == nil || ctx.Err() != nil {
			break
		}
	}
	return out, err
}

func httpDoor(port string, h http.Handler) door {
	s := &http.Server{ReadHeaderTimeout: callTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ending.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})}
	return door{port, s.Serve, s.Shutdown}
}

// handle answers with JSON.
func handle(mux *http.ServeMux, pattern string, f func(*http.Request) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		begun, code := time.Now(), http.StatusOK
		out, err := f(r)
		if err != nil {
			code, out = http.StatusBadGateway, message{"error": err.Error()}
		}
		observe(pattern, strconv.Itoa(code), begun)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(out) // a client that has gone needs no answer
	})
}

// caller opens a connection for each request, as call does.
var caller = &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}

// post sends JSON to another service and decodes its answer.
func post(ctx context.Context, url string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := caller.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return fmt.Errorf("%s: %s: %s", url, answer.Status, text)
	}
	return json.NewDecoder(answer.Body).Decode(out)
}
