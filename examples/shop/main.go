// Command shop is a small web shop of seven programs in one: the first argument says which of them runs. Each serves its
// own protocol on port 8080, and its health and its metrics on port 9100. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
)

// A door is one port that a service serves, until stop, which lets requests end first.
type door struct {
	port  string
	serve func(net.Listener) error
	stop  func(context.Context) error
}

var services = map[string]func() ([]door, error){
	"storefront": storefront, "prices": prices, "catalog": catalog, "cart": cart, "checkout": checkout, "payment": payment, "shipping": shipping,
}

const (
	// lameDuck is how long a service that was told to end goes on: so long it takes until no proxy leads to it any more.
	lameDuck = 5 * time.Second
	// endTimeout bounds what requests then may still take.
	endTimeout = 10 * time.Second
)

// ending is set when the service has been told to end: it is not ready, and asks clients to go elsewhere.
var ending atomic.Bool

func main() {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	var err error
	if role == "load" {
		err = load(os.Args[2:])
	} else if make, ok := services[role]; ok {
		err = run(role, make)
	} else {
		err = fmt.Errorf("shop: no service %q: storefront, prices, catalog, cart, checkout, payment, shipping; or load", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(role string, make func() ([]door, error)) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	doors, err := make()
	if err != nil {
		return err
	}
	failed := serveAll(doors)
	health := httpDoor("9100", healthHandler())
	go func() { failed <- listen(health) }()
	slog.Info("serving", "service", role)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending.Store(true)
	slog.Info("ending", "service", role, "after", lameDuck)
	<-time.After(lameDuck)
	stop, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	var errs []error
	for _, d := range doors {
		errs = append(errs, d.stop(stop))
	}
	return errors.Join(errs...)
}

func serveAll(doors []door) chan error {
	failed := make(chan error, len(doors)+1)
	for _, d := range doors {
		go func() {
			if err := listen(d); err != nil {
				failed <- err
			}
		}()
	}
	return failed
}

func listen(d door) error {
	l, err := net.Listen("tcp", ":"+d.port)
	if err != nil {
		return fmt.Errorf("shop: %w", err)
	}
	if err := d.serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("shop: port %s: %w", d.port, err)
	}
	return nil
}

func healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/alive", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if ending.Load() {
			http.Error(w, "ending", http.StatusServiceUnavailable)
		}
	})
	mux.Handle("/metrics", promhttp.Handler())
	return mux
}
