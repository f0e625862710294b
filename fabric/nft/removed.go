package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// WatchRemoved calls removed when a table of the name goes, whoever removes it, and when
// it cannot tell, until ctx ends. It returns when nothing more is seen.
func WatchRemoved(ctx context.Context, netns int, name string, removed func()) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return fmt.Errorf("nft: watch tables: %w", err)
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	defer c.Close()
	_ = c.SetReadBuffer(1 << 20)
	removed() // before the watch began
	for {
		messages, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			removed() // perhaps: some were lost
		case err != nil:
			return fmt.Errorf("nft: watch tables: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE && tableName(m.Data) == name {
				removed()
			}
		}
	}
}

// tableName is the name in a message about a table.
func tableName(data []byte) string {
	if len(data) < 4 {
		return ""
	}
	attributes, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return ""
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_TABLE_NAME {
			return attributes.String()
		}
	}
	return ""
}
