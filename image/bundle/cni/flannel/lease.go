package flannel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// lease is the content of flannel's subnet.env for this node.
type lease struct {
	networks []netip.Prefix // the pod networks of the cluster, routed to the bridge's gateway
	subnets  []netip.Prefix // this node's share: one for each address family
	mtu      int            // bytes; 0 if absent
	ipMasq   bool           // flannel masquerades already
}

// awaitLease waits for flannel: the node is Ready a second or two before the lease is written, and the kubelet tries
// again only after about 12 s.
func awaitLease(path string, patience time.Duration) (lease, error) {
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		l, err := readLease(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || time.Now().After(end) {
			return l, err
		}
	}
}

func readLease(path string) (lease, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return lease{}, fmt.Errorf("flannel: no lease for this node yet: %w: wait for the node to become ready", err)
	}
	if err != nil {
		return lease{}, fmt.Errorf("flannel: %w", err)
	}
	defer f.Close()
	l, err := parseLease(f)
	if err != nil {
		return lease{}, fmt.Errorf("flannel: %s: %w: restart rivulet to have it written again", path, err)
	}
	return l, nil
}

func parseLease(r io.Reader) (lease, error) {
	var l lease
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		key, value, found := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		if !found {
			continue
		}
		var err error
		switch key {
		case "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK":
			l.networks, err = appendPrefixes(l.networks, value)
		case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
			l.subnets, err = appendPrefixes(l.subnets, value)
		case "FLANNEL_MTU":
			l.mtu, err = strconv.Atoi(value)
		case "FLANNEL_IPMASQ":
			l.ipMasq, err = strconv.ParseBool(value)
		}
		if err != nil {
			return lease{}, fmt.Errorf("%s: %w", key, err)
		}
	}
	if err := lines.Err(); err != nil {
		return lease{}, err
	}
	if len(l.subnets) == 0 {
		return lease{}, errors.New("FLANNEL_SUBNET is missing")
	}
	return l, nil
}

// appendPrefixes adds one prefix or several, separated by commas, with the host bits cleared: flannel writes its
// gateway's address there.
func appendPrefixes(to []netip.Prefix, value string) ([]netip.Prefix, error) {
	for text := range strings.SplitSeq(value, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		to = append(to, p.Masked())
	}
	return to, nil
}
