package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long the kernel's notices of one change take to arrive.
	settle = 20 * time.Millisecond
	// pace is the least time between two repairs of one table: another program may keep changing it.
	pace = time.Second
	// quiet is the least time between two log lines about one table.
	quiet = time.Minute
	// notices bounds the kernel's buffer for unread notices, bytes.
	notices = 8 << 20
)

// Guard detects changes by other programs to the tables of this process (nft flush ruleset, a restart of the nftables
// service, a person). A process has one. The owner of a table creates it by Tables, writes it again when Changed
// receives, and reports failures.
//
// It reads the kernel's notices and writes nothing. The number of the writing socket identifies own changes; other
// tables are ignored by their name.
type Guard struct {
	netns int
	log   *slog.Logger
	// first is a socket that writes nothing. The kernel numbers the first socket of a process by its PID, which a
	// process in another PID namespace may have too, and further ones at random.
	first *netlink.Conn

	mu     sync.Mutex
	early  *netlink.Conn // receives notices from NewGuard on; nil: taken by Run, or not available
	tables map[string]*Tables
	own    map[uint32]time.Time // this process's writing sockets
}

// NewGuard makes one for a network namespace; 0 is the process's own. Run detects changes since then, if it begins
// within a minute.
func NewGuard(netns int, log *slog.Logger) *Guard {
	k := &Guard{netns: netns, log: log, tables: map[string]*Tables{}, own: map[uint32]time.Time{}}
	k.first, _ = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	k.early, _ = k.subscribe() // on failure Run tries again
	return k
}

func (k *Guard) subscribe() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.netns, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return nil, fmt.Errorf("nft: changes by other programs are not seen: %w; see rivulet doctor kernel", err)
	}
	_ = c.SetReadBuffer(notices)
	return c, nil
}

// Tables creates the tables of a name, in place of earlier ones of that name.
func (k *Guard) Tables(name string, families ...nftables.TableFamily) *Tables {
	t := &Tables{Name: name, Families: families, NetNS: k.netns, guard: k, changed: make(chan struct{}, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tables[name] = t
	return t
}

func (k *Guard) Names() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.tables {
		names = append(names, name)
	}
	return names
}

// Run watches until ctx ends, or until the subscription fails. Ready is called when it has begun.
func (k *Guard) Run(ctx context.Context, ready func()) error {
	k.mu.Lock()
	c := k.early
	k.early = nil
	k.mu.Unlock()
	if c == nil {
		var err error
		if c, err = k.subscribe(); err != nil {
			return err
		}
		k.doubt() // earlier changes
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	ready()
	for {
		messages, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			k.doubt() // notices were lost
		case err != nil:
			return fmt.Errorf("nft: changes by other programs are not seen: %w", err)
		}
		for _, m := range messages {
			k.notice(m)
		}
	}
}

// doubt has all tables written again. It is for lost notices only: a packet that arrives during the replacement of a table
// may pass after the end of the old rules and before the new ones.
func (k *Guard) doubt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.tables {
		go t.touched(false) // it may be in use by a write
	}
}

func (k *Guard) notice(m netlink.Message) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
		return
	}
	name := tableName(m.Data)
	k.mu.Lock()
	t, wanted := k.tables[string(name)]
	_, own := k.own[m.Header.PID]
	k.mu.Unlock()
	if wanted && !own {
		t.touched(true)
	}
}

// tableName is the name in a notice about a table or a part of one: the first attribute of all of them.
func tableName(data []byte) []byte {
	const header, attribute = 4, 4
	if len(data) < header+attribute {
		return nil
	}
	end := header + int(binary.NativeEndian.Uint16(data[header:]))
	if binary.NativeEndian.Uint16(data[header+2:]) != unix.NFTA_TABLE_NAME || end > len(data) || end <= header+attribute {
		return nil
	}
	return data[header+attribute : end-1] // it ends with a zero byte
}

// open is Open with a socket whose writes count as own ones.
func (k *Guard) open() (*nftables.Conn, error) {
	return open(k.netns, func(c *netlink.Conn) error {
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var name unix.Sockaddr
		if e := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); e != nil {
			return e
		}
		if at, ok := name.(*unix.SockaddrNetlink); ok {
			k.wrote(at.Pid)
		}
		return err
	})
}

// wrote registers a writing socket. The kernel does not reuse its number soon.
func (k *Guard) wrote(port uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for other, at := range k.own {
		if now.Sub(at) > quiet {
			delete(k.own, other)
		}
	}
	k.own[port] = now
}
