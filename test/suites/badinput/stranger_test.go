package badinput

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
	"rivulet/test/harness/lab"
)

// A neighbour that speaks garbage costs itself an error and us nothing: no crash,
// no memory, a short log; one that is too new is shown with what to do.
func TestStrangers(t *testing.T) {
	a, b := pair(t)
	install(t, b)
	stop(t, b) // what knocks from b's address is the stranger alone
	t.Cleanup(func() { start(t, b) })
	before, _ := status(t, a)
	memory := resident(t, a, before.PIDs["supervisor"])
	mark := len(log(t, a, 0))
	for _, tc := range []struct{ does, want string }{
		{"noise", "closed"},
		{"plain-http", "closed"},
		{"silence", "closed"},
		{"no-certificate", "404 Not Found"}, // who offers TLS 1.2 may have a link, and meets nothing else
		{"rsa-certificate", "404 Not Found"},
		{"a-gigabyte", "too-large"},
		{"not-json", "bad-message"},
		{"wrong-types", "bad-message"},
		{"nothing-in-it", "version"},
		{"another's-id", "identity"},
		{"version-99", "version"},
		{"version-99-often", "version"},
	} {
		t.Run(tc.does, func(t *testing.T) {
			cmd, err := b.Command(limit(t, 2*time.Minute), installed, tc.does)
			if err != nil {
				t.Fatal(err)
			}
			cmd.Env = append(cmd.Env, "BADINPUT_ROLE=stranger", "BADINPUT_VICTIM=10.77.0.11:7442", "BADINPUT_ID="+string(before.ID))
			if r := end(t, cmd); strings.TrimSpace(r.out) != tc.want {
				t.Errorf("the stranger met %q, want %q; %s", r.out, tc.want, r.errOut)
			}
		})
	}
	peers := must(t, a, "rivulet", "peers")
	var line string
	for l := range strings.Lines(peers) {
		if strings.Contains(l, "speaks [99]") {
			line = l
		}
	}
	for _, w := range []string{"Refused", "10.77.0.12", fmt.Sprintf("one side speaks [99], the other %v", pairing.Versions), fmt.Sprintf("upgrade rivulet on the side that speaks %v", pairing.Versions)} {
		if !strings.Contains(line, w) {
			t.Errorf("%q is missing; peers:\n%s", w, peers)
		}
	}
	after, _ := status(t, a)
	if after.PIDs["supervisor"] != before.PIDs["supervisor"] || after.PIDs["tunnel"] != before.PIDs["tunnel"] || !after.Ready {
		t.Errorf("processes were %v, are %v, ready %v", before.PIDs, after.PIDs, after.Ready)
	}
	grown := resident(t, a, before.PIDs["supervisor"]) - memory
	t.Logf("the supervisor grew by %d kB", grown)
	if grown > 32<<10 {
		t.Errorf("the supervisor grew by %d kB", grown)
	}
	if said := log(t, a, mark); strings.Count(said, "\n") > 40 {
		t.Errorf("%d lines in the log:\n%s", strings.Count(said, "\n"), said)
	}
}

// stranger knocks at a device as told and prints what it met.
func stranger(does string) {
	victim := os.Getenv("BADINPUT_VICTIM")
	met, err := knock(does, victim)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	fmt.Println(met)
}

func knock(does, victim string) (string, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	id, err := rpc.NewIdentity(key, "stranger")
	if err != nil {
		return "", err
	}
	any := &tls.Config{InsecureSkipVerify: true}
	switch does {
	case "noise":
		noise := make([]byte, 1<<20)
		rand.Read(noise)
		return raw(victim, noise)
	case "plain-http":
		return raw(victim, []byte("POST /v1/peering HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"))
	case "silence":
		return raw(victim, nil)
	case "no-certificate":
		return post(victim, any, strings.NewReader("{}"))
	case "rsa-certificate":
		cert, err := rsaCertificate()
		if err != nil {
			return "", err
		}
		any.Certificates = []tls.Certificate{cert}
		return post(victim, any, strings.NewReader("{}"))
	case "a-gigabyte":
		return post(victim, rpc.ClientTLS(id, ""), io.LimitReader(zeros{}, 1<<30))
	case "not-json":
		return post(victim, rpc.ClientTLS(id, ""), strings.NewReader(`"hello"`))
	case "wrong-types":
		return post(victim, rpc.ClientTLS(id, ""), strings.NewReader(`{"versions":[2],"id":5,"name":["x"],"podCIDR":{}}`))
	case "nothing-in-it":
		return post(victim, rpc.ClientTLS(id, ""), strings.NewReader(`{}`))
	case "another's-id":
		return say(victim, id, peer.ID(os.Getenv("BADINPUT_ID")), pairing.Versions)
	case "version-99":
		return say(victim, id, id.ID, []int{99})
	case "version-99-often":
		for range 100 {
			if met, err := say(victim, id, id.ID, []int{99}); met != "version" {
				return met, err
			}
		}
		return "version", nil
	}
	return "", fmt.Errorf("%s is not known", does)
}

// raw sends bytes and waits for the other side to close.
func raw(victim string, b []byte) (string, error) {
	c, err := net.Dial("tcp", victim)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	c.Write(b)
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		return "open", nil
	}
	return "closed", nil
}

func say(victim string, id rpc.Identity, claims peer.ID, versions []int) (string, error) {
	m := pairing.Self{
		ID: claims, Name: "stranger", WireGuardKey: strangerKey, TunnelPort: 7442, ControlPort: 7442,
		TunnelAddress: netip.MustParseAddr("10.42.255.254"), PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"),
	}.Hello(peer.Record{})
	m.Versions, m.Sequence = versions, 1
	body, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	return post(victim, rpc.ClientTLS(id, ""), strings.NewReader(string(body)))
}

// post returns the code of the error that the device answers, or "closed".
func post(victim string, config *tls.Config, body io.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+victim+pairing.Path, body)
	if err != nil {
		return "", err
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return "closed", err
	}
	defer resp.Body.Close()
	var e rpc.Error
	if err := json.NewDecoder(io.LimitReader(resp.Body, rpc.MaxBody)).Decode(&e); err != nil {
		return resp.Status, err
	}
	return e.Code, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func rsaCertificate() (tls.Certificate, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// resident is the memory of a process on a device, in kB.
func resident(t *testing.T, d *lab.Device, pid int) (kb int) {
	t.Helper()
	for l := range strings.Lines(must(t, d, "cat", fmt.Sprintf("/proc/%d/status", pid))) {
		if rest, ok := strings.CutPrefix(l, "VmRSS:"); ok {
			fmt.Sscan(rest, &kb)
		}
	}
	if kb == 0 {
		t.Fatalf("no memory known of process %d", pid)
	}
	return kb
}

// strangerKey is one that can be used.
var strangerKey = func() wgkey.Public { k, _ := wgkey.Generate(); return k.Public() }()
