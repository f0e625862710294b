package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/redact"
)

// unpack returns the archive's files.
func unpack(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "rivulet-support/")] = string(text)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// canary is a secret that tells where it was planted.
func canary(where string) string { return "Canary" + where + "0123456789abcdef" }

// A device that is full of secrets, each of which it also says in its log without
// a name, as a bug of some library might.
func planted(t *testing.T) (Device, []string) {
	dir := t.TempDir()
	d := Device{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"), ConfigDir: filepath.Join(dir, "etc"), Executable: filepath.Join(dir, "rivulet")}
	d.Doctor = doctor.Here(d.State, d.Run)
	var all []string
	c := func(where string) string { all = append(all, canary(where)); return canary(where) }

	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	seed := b64(strings.Repeat("s", 32))
	all = append(all, seed)
	put(t, d.State+"/state.db", "\x00\x01junk\x00{\"seed\":\""+seed+"\",\"wireguard\":\""+c("wireguard")+"\"}\x00\xff")
	put(t, d.State+"/kubeconfig", "users:\n- name: default\n  user:\n    client-key-data: "+b64("-----BEGIN EC PRIVATE KEY-----\n"+c("kubeconfig")+"\n-----END EC PRIVATE KEY-----\n")+"\n    token: "+c("usertoken")+"\n    password: \""+c("userpass")+"\"\n")
	put(t, d.State+"/k3s/server/token", "K10"+strings.Repeat("0", 64)+"::server:"+c("servertoken")+"\n")
	put(t, d.State+"/k3s/server/cred/passwd", c("passwd")+",node,node,k3s:agent\n")
	put(t, d.State+"/k3s/server/tls/client-ca.key", "-----BEGIN EC PRIVATE KEY-----\n"+c("tlskey")+"\n-----END EC PRIVATE KEY-----\n")
	put(t, dir+"/group", c("groupfile")+"\n")
	put(t, dir+"/campus", "users: [{name: x, user: {token: "+c("campus")+"}}]\n")
	put(t, d.State+"/config.good.yaml", "trust:\n  secretFile: "+dir+"/group\nburst:\n- name: c\n  kubeconfig: "+dir+"/campus\n")
	put(t, d.ConfigDir+"/config.yaml", "name: pi\njoin: "+c("join")+"\ntrust:\n  secret: "+c("group")+"\nwifi:\n  psk: '"+c("wifi")+"'\n")
	put(t, d.ConfigDir+"/registries.yaml", "configs:\n  r.example:\n    auth:\n      username: me\n      password: "+c("registry")+"\n      auth: "+b64("me:"+canary("registry"))+"\n")

	var log strings.Builder
	fmt.Fprintln(&log, "level=info msg=\"what helps\"")
	for _, secret := range all {
		fmt.Fprintf(&log, "level=debug msg=\"a library says %s by itself\"\n", secret)
	}
	fmt.Fprintf(&log, "Authorization: Bearer %s\nGET https://u:%s@r.example/\nenv DB_PASSWORD=%s\n", c("bearer"), c("url"), c("env"))
	put(t, d.State+"/log/engine.log", log.String())
	// What came before this start.
	d.Doctor.Root = dir
	put(t, dir+"/var/log/rivulet/previous.log", log.String())
	put(t, dir+doctor.CrashFolder+"/1761000000/001/dmesg.txt", "Kernel panic - not syncing: token="+c("crash")+"\n")
	put(t, d.State+"/log/tunnel.log", "private_key="+c("tunnel")+"\n")
	put(t, d.State+"/log/tunnel.log.1", "what came before\nprivate_key="+c("tunnelbefore")+"\n")
	// kubectl, and what a careless message of an event might hold.
	put(t, d.Executable, "#!/bin/sh\necho \"$*\"\necho 'Failed to pull https://user:"+c("event")+"@r.example/x, password: "+c("eventpw")+"'\necho '"+canary("servertoken")+"'\n")

	if err := os.MkdirAll(d.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", api.Socket(d.Run))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"path":%q,"token":%q,"said":%q}`, r.URL.Path, canary("status"), canary("group"))
	})}
	all = append(all, canary("status"))
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return d, all
}

func TestNoSecretGetsOut(t *testing.T) {
	d, secrets := planted(t)
	var b bytes.Buffer
	if _, err := Write(t.Context(), &b, time.Now(), redact.New(d.Secrets()), d.Parts()); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, b.Bytes())
	for name, text := range files {
		for _, s := range secrets {
			if strings.Contains(text, s) {
				t.Errorf("%s holds %s:\n%.2000s", name, s, text)
			}
		}
	}
	// All the same it is of use.
	for name, want := range map[string]string{
		"index.txt": "logs/engine.log", "logs/engine.log": `msg="what helps"`, "status.json": "/v1/status", "goroutines.txt": "/v1/goroutines",
		"configuration/config.yaml": "name: pi", "configuration/registries.yaml": "r.example", "kubernetes/pods.txt": "get pods -A -o wide",
		"logs/tunnel.log.1": "what came before", "logs/previous.log": `msg="what helps"`, "logs/crash/1761000000/001/dmesg.txt": "Kernel panic - not syncing", "doctor.txt": `"memory-cgroup"`, "machine/proc/meminfo": "MemTotal", "files.txt": "log/engine.log", "versions.txt": "rivulet",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s: %.300q, want %q in it", name, files[name], want)
		}
	}
}

// Nothing runs and the disk is gone: what there is comes, and the rest is named.
func TestADeadDevice(t *testing.T) {
	dir := t.TempDir()
	d := Device{State: dir + "/gone", Run: dir + "/gone", ConfigDir: dir + "/gone", Executable: dir + "/gone"}
	d.Doctor = doctor.Here(d.State, d.Run)
	var b bytes.Buffer
	missing, err := Write(t.Context(), &b, time.Now(), redact.New(d.Secrets()), d.Parts())
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(missing, "\n")
	files := unpack(t, b.Bytes())
	for _, want := range []string{"status.json: rivulet is not running", "logs/engine.log: open", "kubernetes/nodes.txt", "files.txt"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not named as missing in\n%s", want, all)
		}
	}
	if strings.Contains(all, "tunnel.log.1") {
		t.Errorf("what is there only after a log was put aside is named as missing:\n%s", all)
	}
	if !strings.Contains(files["index.txt"], "could not be had: rivulet is not running") || files["machine/proc/meminfo"] == "" || files["doctor.txt"] == "" {
		t.Errorf("%s", files["index.txt"])
	}
}

func TestPartsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		defer close(stuck)
		var b bytes.Buffer
		missing, err := Write(t.Context(), &b, time.Now(), nil, []Part{
			{"hangs.txt", func(context.Context) (string, error) { <-stuck; return "", nil }},
			{"panics.txt", func(context.Context) (string, error) { panic("no") }},
			{"half.txt", func(context.Context) (string, error) { return "this much", errors.New("broke off") }},
		})
		if err != nil || len(missing) != 3 {
			t.Errorf("%v %v", missing, err)
		}
		files := unpack(t, b.Bytes())
		if files["half.txt"] != "this much" {
			t.Errorf("half %q", files["half.txt"])
		}
	})
}

func TestATalkativeProgramTakesNoMemory(t *testing.T) {
	l := &limited{}
	for range 5 * partMax / 1024 {
		l.Write(bytes.Repeat([]byte("x"), 1024))
	}
	l.Write([]byte("end"))
	if len(l.b) > 3*partMax || !strings.HasSuffix(l.String(), "end") {
		t.Errorf("%d bytes", len(l.b))
	}
}

type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(p), nil
}

func TestAFullDiskIsAnError(t *testing.T) {
	part := Part{"x.txt", func(context.Context) (string, error) {
		var b strings.Builder
		for i := range 10000 {
			fmt.Fprintf(&b, "%x\n", i*7919)
		}
		return b.String(), nil
	}}
	if _, err := Write(t.Context(), &full{5000}, time.Now(), nil, []Part{part}); err == nil {
		t.Error("no error")
	}
}
