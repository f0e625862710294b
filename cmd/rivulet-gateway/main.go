// Command rivulet-gateway is the program of the gateway pod in a foreign cluster: see package rivulet/fabric/gateway.
// It needs no privileges and writes no file.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"rivulet/fabric/gateway"
	"rivulet/fabric/gateway/gatewayproto"
)

func main() {
	file := flag.String("config", "/etc/rivulet-gateway/config.json", "the configuration, looked at again and again")
	limit := flag.Int64("memory-limit", 96<<20, "soft limit of the heap, bytes")
	verbose := flag.Bool("debug", false, "log more")
	version := flag.Bool("version", false, "print the version and end")
	flag.Parse()
	if *version {
		fmt.Println(gateway.Version)
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "rivulet-gateway: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(*limit)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if err := run(ctx, *file, log); err != nil && ctx.Err() == nil {
		log.Error("the gateway ends", "err", err)
		os.Exit(1)
	}
}

// run serves until ctx ends or a part of it does.
func run(ctx context.Context, file string, log *slog.Logger) error {
	g, err := gateway.New("", log)
	if err != nil {
		return err
	}
	defer g.Close()
	// On the loopback only, which is reachable by port-forward to the pod and in no other way.
	control, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", gatewayproto.ControlPort))
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	streams, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", gatewayproto.StreamPort))
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	ready, err := net.Listen("tcp", fmt.Sprintf(":%d", gatewayproto.ReadyPort))
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var parts sync.WaitGroup
	for _, part := range []func() error{
		func() error { return g.FollowFile(ctx, file) },
		func() error { return g.ServeControl(ctx, control) },
		func() error { return g.TakeStreams(ctx, streams) },
		func() error { return g.ServeReady(ctx, ready) },
		func() error {
			return g.ServeDNS(ctx, fmt.Sprintf(":%d", gatewayproto.DNSPort), gateway.NameServers("/etc/resolv.conf"))
		},
	} {
		parts.Go(func() { cancel(part()) })
	}
	parts.Wait()
	return context.Cause(ctx)
}
