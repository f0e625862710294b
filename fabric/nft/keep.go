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
	// settle is how long the kernel's notices of one change take to come.
	settle = 20 * time.Millisecond
	// pace is the least time between two times that one table is put back: another program may
	// keep at it.
	pace = time.Second
	// quiet is the least time between two lines about one table in the log.
	quiet = time.Minute
	// notices bounds what the kernel holds for a Keeper that has not come to read it.
	notices = 8 << 20
)

// Guard sees what other programs do to the tables that this process writes (nft flush
// ruleset, a restart of the nftables service, a person), and has them put back. A process
// has one, and each owner of a table makes it by Tables, puts it back when Changed says so,
// and reports what it cannot put back.
//
// It reads the kernel's notices. Those of own writes are told by the socket that wrote,
// those of tables of others, however many, by their name. It writes nothing.
type Guard struct {
	netns int
	log   *slog.Logger
	// first is a socket that nothing is written by. The kernel numbers the first one of a process
	// by its PID, which one in another PID namespace may have too, and further ones at random.
	first *netlink.Conn

	mu     sync.Mutex
	tables map[string]*Tables
	own    map[uint32]time.Time // sockets that this process has written by
}

// NewGuard makes one for a network namespace; 0 is the process's own.
func NewGuard(netns int, log *slog.Logger) *Guard {
	k := &Guard{netns: netns, log: log, tables: map[string]*Tables{}, own: map[uint32]time.Time{}}
	k.first, _ = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns}) // where there is none Run says so
	return k
}

// Tables makes those of a name, in the place of what was made of that name before.
func (k *Guard) Tables(name string, families ...nftables.TableFamily) *Tables {
	t := &Tables{Name: name, Families: families, NetNS: k.netns, guard: k, changed: make(chan struct{}, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tables[name] = t
	return t
}

// Names are those of all tables that were made.
func (k *Guard) Names() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.tables {
		names = append(names, name)
	}
	return names
}

// Run watches until ctx ends, or until nothing more is seen. ready is called when it has
// begun.
func (k *Guard) Run(ctx context.Context, ready func()) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.netns, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return fmt.Errorf("nft: changes by other programs are not seen: %w; see rivulet doctor kernel", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetReadBuffer(notices)
	k.doubt() // what was changed before
	ready()
	for {
		messages, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			k.doubt() // some were lost
		case err != nil:
			return fmt.Errorf("nft: changes by other programs are not seen: %w", err)
		}
		for _, m := range messages {
			k.notice(m)
		}
	}
}

// doubt has all tables written anew.
func (k *Guard) doubt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.tables {
		go t.touched(false) // one may be in the midst of being written
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

// tableName is the name in a notice about a table or a part of one: the first attribute of
// all of them.
func tableName(data []byte) []byte {
	const header, attribute = 4, 4
	if len(data) < header+attribute {
		return nil
	}
	end := header + int(binary.NativeEndian.Uint16(data[header:]))
	if binary.NativeEndian.Uint16(data[header+2:]) != unix.NFTA_TABLE_NAME || end > len(data) || end <= header+attribute {
		return nil
	}
	return data[header+attribute : end-1] // it ends with a zero
}

// open is Open with a socket whose writes are known as own ones.
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

// wrote notes a socket. The kernel gives its number to no other soon.
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
