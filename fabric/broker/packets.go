package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/fabric/changes"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/tunnel/wgdev"
	"rivulet/fabric/wgkey"
)

// packets relays the packets of members: a hub of package paths, without WireGuard.
type packets struct {
	ctx     context.Context
	key     wgkey.Private
	manager *paths.Manager
	wanted  chan struct{}

	mu    sync.Mutex
	peers []paths.Peer
}

func servePackets(ctx context.Context, key wgkey.Private, port uint16, log *slog.Logger) (*packets, error) {
	p := &packets{ctx: ctx, key: key, wanted: make(chan struct{}, 1)}
	p.manager = paths.New(paths.DefaultTiming, func() {}, slog.New(slog.DiscardHandler)) // strangers would fill the log
	bind := paths.NewBind(p.manager, wgdev.NewBind(log))
	fns, _, err := bind.Open(port)
	if err != nil {
		return nil, fmt.Errorf("broker: UDP port %d cannot be opened (%w); end the program that has it, or choose another with --listen", port, err)
	}
	context.AfterFunc(ctx, func() { bind.Close() })
	for _, fn := range fns {
		go receive(fn, bind.BatchSize())
	}
	go p.manager.Run(ctx)
	go p.run(ctx)
	p.serve(nil)
	return p, nil
}

// receive reads packets until the bind is closed. The bind processes them.
func receive(fn conn.ReceiveFunc, batch int) {
	bufs, sizes, eps := make([][]byte, batch), make([]int, batch), make([]conn.Endpoint, batch)
	for i := range bufs {
		bufs[i] = make([]byte, 1<<16)
	}
	for {
		if _, err := fn(bufs, sizes, eps); err != nil {
			return
		}
	}
}

// serve makes peers the ones whose packets are relayed.
func (p *packets) serve(peers []paths.Peer) {
	p.mu.Lock()
	p.peers = peers
	p.mu.Unlock()
	changes.Poke(p.wanted)
}

func (p *packets) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wanted:
		}
		p.mu.Lock()
		peers := p.peers
		p.mu.Unlock()
		// A key is valid: wgkey has parsed it.
		_ = p.manager.Apply(paths.Config{Private: p.key.Bytes(), Public: p.key.Public().Bytes(), Relay: true, Hub: true, Peers: peers})
	}
}

// stream takes a connection over that is to carry packets.
func (p *packets) stream(c net.Conn, begun []byte) error {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("broker: a %T cannot be a stream", c)
	}
	f, err := tcp.File()
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	defer f.Close()
	own, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	p.manager.Accept(p.ctx, own, begun)
	return nil
}
