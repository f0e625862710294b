package isolation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/peer"
)

// pod is what the container network has made for one pod.
type pod struct {
	namespace string
	addr      netip.Addr
	veth      string // the host's end
	mac       string // of the pod's end
	made      time.Time
}

// guest is a pod that runs here for another cluster.
type guest struct {
	Addr      netip.Addr
	Veth, MAC string
	Consumer  peer.ID
}

// results reads the results that libcni keeps, one file for each interface of each
// pod. What is no result of a pod on the bridge is left out; a file that is being
// written is read again when it is complete.
func results(dir string) ([]pod, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no pod yet
	}
	if err != nil {
		return nil, fmt.Errorf("isolation: %w", err)
	}
	var pods []pod
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // it has just gone
		}
		p, ok := parse(text)
		if !ok {
			continue
		}
		if info, err := e.Info(); err == nil {
			p.made = info.ModTime()
		}
		pods = append(pods, p)
	}
	return pods, nil
}

func parse(text []byte) (pod, bool) {
	var file struct {
		CNIArgs [][2]string `json:"cniArgs"`
		Result  struct {
			Interfaces []struct{ Name, Mac, Sandbox string }
			IPs        []struct{ Address string }
		}
	}
	if json.Unmarshal(text, &file) != nil {
		return pod{}, false
	}
	var p pod
	for _, a := range file.CNIArgs {
		if a[0] == "K8S_POD_NAMESPACE" {
			p.namespace = a[1]
		}
	}
	for _, i := range file.Result.Interfaces {
		switch {
		case i.Sandbox != "":
			p.mac = i.Mac
		case strings.HasPrefix(i.Name, "veth"):
			p.veth = i.Name
		}
	}
	for _, ip := range file.Result.IPs {
		if prefix, err := netip.ParsePrefix(ip.Address); err == nil && prefix.Addr().Is4() {
			p.addr = prefix.Addr()
		}
	}
	if _, err := net.ParseMAC(p.mac); err != nil {
		p.mac = ""
	}
	return p, p.namespace != "" && p.addr.IsValid() && p.veth != "" && len(p.veth) < 16
}

// guests are the pods in twins. Files outlive pods when the power goes: one whose
// interface is gone is none, and of two with one address the newer is right.
func guests(pods []pod, twins map[string]peer.ID, exists func(veth string) bool) []guest {
	newest := map[netip.Addr]pod{}
	for _, p := range pods {
		if was, taken := newest[p.addr]; (!taken || p.made.After(was.made)) && exists(p.veth) {
			newest[p.addr] = p
		}
	}
	var out []guest
	for _, p := range newest {
		if id, guestly := twins[p.namespace]; guestly {
			out = append(out, guest{Addr: p.addr, Veth: p.veth, MAC: p.mac, Consumer: id})
		}
	}
	slices.SortFunc(out, func(a, b guest) int { return a.Addr.Compare(b.Addr) })
	return out
}
