// Command member is one member of a group that gossips its own addresses (HashiCorp's
// memberlist, which Consul, Nomad and Loki use), as a database does: it binds to the address
// that the downward API tells it, announces it, and learns those of others from the group
// alone. It is never shipped.
//
// It answers HTTP at that address: GET / what it knows, POST /crash ends it at once. Called
// with get URL or post URL it is the client of that.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// State is what a member knows.
type State struct {
	// PodIP is what the downward API tells, Argument the same in an argument of the program.
	PodIP, Argument string
	// Hosts are the addresses of its host name, Interfaces those of its interfaces.
	Hosts, Interfaces []string
	// Members are the addresses of all by name, as the group tells them.
	Members map[string]string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 3 {
		return ask(os.Args[1], os.Args[2])
	}
	own, group := os.Getenv("POD_IP"), os.Getenv("GROUP")
	// For slow links, and for machines that are busy with tests.
	cfg := memberlist.DefaultWANConfig()
	cfg.Name = os.Getenv("POD_NAME")
	if os.Getenv("DEFAULTS") == "" { // else it binds to all, and announces the private address that it finds
		cfg.BindAddr, cfg.AdvertiseAddr = own, own
	}
	cfg.DeadNodeReclaimTime = time.Second // a pod that is made anew has another address
	cfg.GossipInterval, cfg.PushPullInterval = 200*time.Millisecond, 5*time.Second
	list, err := memberlist.Create(cfg)
	if err != nil {
		return err
	}
	go join(list, group, own)
	http.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		s := State{PodIP: own, Members: map[string]string{}}
		if len(os.Args) > 1 {
			s.Argument = os.Args[1]
		}
		if name, err := os.Hostname(); err == nil {
			s.Hosts, _ = net.LookupHost(name)
		}
		all, _ := net.InterfaceAddrs()
		for _, a := range all {
			if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.IsGlobalUnicast() && ip.To4() != nil {
				s.Interfaces = append(s.Interfaces, ip.String())
			}
		}
		for _, m := range list.Members() {
			s.Members[m.Name] = m.Addr.String()
		}
		_ = json.NewEncoder(w).Encode(s)
	})
	http.HandleFunc("POST /crash", func(http.ResponseWriter, *http.Request) { os.Exit(1) })
	return http.ListenAndServe(net.JoinHostPort(own, "8080"), nil)
}

func ask(method, url string) error {
	r, err := http.NewRequest(strings.ToUpper(method), url, nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Timeout: 20 * time.Second}).Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

// join meets the others by the name of the group, until it knows one, and again when it is
// alone.
func join(list *memberlist.Memberlist, group, own string) {
	for {
		if list.NumMembers() < 2 {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			found, err := net.DefaultResolver.LookupHost(ctx, group)
			cancel()
			var others []string
			for _, a := range found {
				if a != own {
					others = append(others, a)
				}
			}
			if _, joined := list.Join(others); err != nil || joined != nil {
				fmt.Fprintln(os.Stderr, "member: join:", err, joined)
			}
		}
		time.Sleep(time.Second)
	}
}
