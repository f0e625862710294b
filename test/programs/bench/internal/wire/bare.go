package wire

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// BareName is the argv[0] under which this program is a bare wireguard-go.
const BareName = "rivulet-bench-wireguard"

// BareMain is wireguard-go as its own main has it, without a control socket: it
// reads its configuration from standard input up to an empty line, says "ready",
// and ends when standard input does.
func BareMain() error {
	var config strings.Builder
	in := lines(os.Stdin)
	for line := range in {
		if line == "" {
			break
		}
		fmt.Fprintln(&config, line)
	}
	t, err := tun.CreateTUN(bareInterface, mtu)
	if err != nil {
		return fmt.Errorf("wire: make a TUN: %w; run as root, with /dev/net/tun", err)
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	defer d.Close()
	if err := d.IpcSet(config.String()); err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	if err := d.Up(); err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

const bareInterface = "wgbare"

// lines reads byte by byte, so that what follows is left for others.
func lines(r io.Reader) func(func(string) bool) {
	return func(yield func(string) bool) {
		var line []byte
		var b [1]byte
		for {
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return
			}
			if b[0] != '\n' {
				line = append(line, b[0])
				continue
			}
			if !yield(string(line)) {
				return
			}
			line = line[:0]
		}
	}
}

// bareConfig is the configuration of one end.
func bareConfig(s, other *side) string {
	return fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s:%d\nallowed_ip=%s\n\n",
		s.secret.privateHex(), tunnelPort, other.secret.publicHex(), other.lan, tunnelPort, other.plain)
}
