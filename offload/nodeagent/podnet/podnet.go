// Package podnet lists the networks of this device's pods: address, interface and MAC of each, with the pod's name,
// before the pod's first process starts. It reads libcni's results in a folder, one file for each interface of each
// pod, in every call. It writes nothing and has no state. A file that is no result, or incomplete, is left out and read
// again after it has changed.
package podnet

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

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
)

// Pod is the network of one pod.
type Pod struct {
	Namespace, Name, UID string
	Addr                 netip.Addr // IPv4
	Veth                 string     // the host's end
	MAC                  string     // of the pod's end; "" if unknown
	made                 time.Time
}

// NoPod is the prefix of interfaces on the bridge that are not of pods.
const NoPod = "vethriv"

func Exists(veth string) bool { _, err := netlink.LinkByName(veth); return err == nil }

// Bridged reports whether packets between two pods of this device pass the IPv4 rules.
func Bridged() bool {
	text, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// Read returns the pods in a folder of results, by address. Files outlive pods after a power cut: one without its
// interface is ignored, and of two with one address the newer is valid. Without a folder there are no pods.
func Read(dir string, exists func(veth string) bool) ([]Pod, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("podnet: %w", err)
	}
	newest := map[netip.Addr]Pod{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // just gone
		}
		p, ok := parse(text)
		if !ok {
			continue
		}
		if info, err := e.Info(); err == nil {
			p.made = info.ModTime()
		}
		if was, taken := newest[p.Addr]; (!taken || p.made.After(was.made)) && exists(p.Veth) {
			newest[p.Addr] = p
		}
	}
	pods := make([]Pod, 0, len(newest))
	for _, p := range newest {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b Pod) int { return a.Addr.Compare(b.Addr) })
	return pods, nil
}

func parse(text []byte) (Pod, bool) {
	var file struct {
		CNIArgs [][2]string `json:"cniArgs"`
		Result  json.RawMessage
	}
	if json.Unmarshal(text, &file) != nil {
		return Pod{}, false
	}
	args := map[string]string{}
	for _, a := range file.CNIArgs {
		args[a[0]] = a[1]
	}
	return Made(args, file.Result)
}

// Made is the pod of the arguments of a CNI plugin (K8S_POD_NAMESPACE and so on) and of its result; false is none.
func Made(args map[string]string, result []byte) (Pod, bool) {
	var r struct {
		Interfaces []struct{ Name, Mac, Sandbox string }
		IPs        []struct{ Address string }
	}
	if json.Unmarshal(result, &r) != nil {
		return Pod{}, false
	}
	p := Pod{Namespace: args["K8S_POD_NAMESPACE"], Name: args["K8S_POD_NAME"], UID: args["K8S_POD_UID"]}
	for _, i := range r.Interfaces {
		switch {
		case i.Sandbox != "":
			p.MAC = i.Mac
		case strings.HasPrefix(i.Name, "veth"):
			p.Veth = i.Name
		}
	}
	for _, ip := range r.IPs {
		if prefix, err := netip.ParsePrefix(ip.Address); err == nil && prefix.Addr().Is4() {
			p.Addr = prefix.Addr()
		}
	}
	if _, err := net.ParseMAC(p.MAC); err != nil {
		p.MAC = ""
	}
	return p, p.Namespace != "" && p.Addr.IsValid() && p.Veth != "" && len(p.Veth) < 16
}

// Watch reports when the result of Read may have changed.
type Watch struct {
	dir   string
	files *fsnotify.Watcher
	there bool
}

// NewWatch watches a folder, and makes it like libcni would: it would otherwise be made with the first pod, whose file
// would be missed.
func NewWatch(dir string) (*Watch, error) {
	files, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("podnet: watch %s: %w; raise fs.inotify.max_user_instances", dir, err)
	}
	_ = os.MkdirAll(dir, 0o700) // Check retries
	w := &Watch{dir: dir, files: files}
	w.Check()
	return w, nil
}

// Check has to be called regularly: the folder may be made with the first pod.
func (w *Watch) Check() {
	if !w.there {
		w.there = w.files.Add(w.dir) == nil
	}
}

// Events gets a value for each change, also for irrelevant ones. It is closed when the watch has ended.
func (w *Watch) Events() <-chan fsnotify.Event { return w.files.Events }

// Errors gets the errors of the watch; the only remedy is to read again.
func (w *Watch) Errors() <-chan error { return w.files.Errors }

func (w *Watch) Close() { _ = w.files.Close() }
