package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/silence"
)

const roleEnv = "PEERS_TEST_ROLE"

// as plays a role on a device and returns what it says.
func as(t *testing.T, ctx context.Context, d *lab.Device, role string) string {
	t.Helper()
	cmd, err := d.Command(ctx, "/var/lib/peers-test")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, roleEnv+"="+role)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s on %s: %v: %s", role, d.Name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// play is what this program does on a device.
func play(role string) {
	what, arg, _ := strings.Cut(role, " ")
	var err error
	switch what {
	case "scan":
		err = scan(arg)
	case "block":
		err = block(arg)
	case "unblock":
		err = unblock()
	default:
		err = errors.New("no such role: " + role)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// control takes connections on the LAN: it shows that those which do not come about could have.
const control = "10.77.0.11:7442"

// scan prints the TCP ports of an address that take a connection, of those that are
// named or of all.
func scan(what string) error {
	addr, only, some := strings.Cut(what, " ")
	connects := func(ctx context.Context, addr string) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	}
	if some {
		open, err := silence.Beside(context.Background(), func(ctx context.Context) error { return connects(ctx, control) }, strings.Split(only, ","),
			func(ctx context.Context, port string) bool { return connects(ctx, net.JoinHostPort(addr, port)) == nil })
		fmt.Println(strings.Join(open, " "))
		return err
	}
	ports := make(chan int)
	var open []string
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			for p := range ports {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				err := connects(ctx, net.JoinHostPort(addr, strconv.Itoa(p)))
				cancel()
				if err != nil {
					continue
				}
				mu.Lock()
				open = append(open, strconv.Itoa(p))
				mu.Unlock()
			}
		})
	}
	for p := 1; p < 1<<16; p++ {
		ports <- p
	}
	close(ports)
	all.Wait()
	fmt.Println(strings.Join(open, " "))
	return nil
}

const blockTable = "peers-test"

// block drops what comes in and goes out for port 7442 of udp or tcp.
func block(proto string) error {
	number := byte(unix.IPPROTO_UDP)
	if proto == "tcp" {
		number = unix.IPPROTO_TCP
	}
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: blockTable, Family: nftables.TableFamilyIPv4})
	for _, hook := range []*nftables.ChainHook{nftables.ChainHookInput, nftables.ChainHookOutput} {
		chain := c.AddChain(&nftables.Chain{Name: fmt.Sprintf("hook%d", *hook), Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(-300)})
		for _, offset := range []uint32{0, 2} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				// On the LAN only: what is in the tunnel has the same port.
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{10}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 13, Len: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{77}},
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(7442)},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
	}
	return c.Flush()
}

func unblock() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.DelTable(&nftables.Table{Name: blockTable, Family: nftables.TableFamilyIPv4})
	return c.Flush()
}
