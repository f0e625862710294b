// Command rivulet-tunnel is the data plane: see package rivulet/fabric/tunnel. It is part of the bundle. The supervisor
// starts it, and it outlives the supervisor.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/memory"
	"rivulet/fabric/logbound"
	"rivulet/fabric/tunnel"
)

func main() {
	socket := flag.String("socket", "/run/rivulet/tunnel.sock", "where to listen for the supervisor")
	limit := flag.Int64("memory-limit", 0, "soft limit of the heap, bytes; 0 chooses by the machine's RAM")
	file := flag.String("log", "", "file to log to, of a bounded size; standard error without it")
	verbose := flag.Bool("debug", false, "log more")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "rivulet-tunnel: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	var out io.Writer = os.Stderr
	if *file != "" {
		f, err := tunnel.OpenLog(*file)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		out = f
	}
	log := slog.New(logbound.Handler(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})))
	if *limit == 0 {
		*limit = int64(memory.For(host.RAM()).Tunnel)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(*limit) // WireGuard would use four times that without one
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	go memory.KeepTrimmed(ctx)
	s := tunnel.NewServer(tunnel.HelperVersion, log)
	go s.Follow(ctx)
	if err := s.Serve(ctx, *socket); err != nil {
		log.Error("the tunnel ends", "err", err)
		os.Exit(1)
	}
}
