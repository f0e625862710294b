package badinput

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/lab"
)

// Ports that others have: status says who and what to do, the rest is up, the log
// stays short, and each part is there seconds after its port is free.
func TestTakenPorts(t *testing.T) {
	a, _ := pair(t)
	install(t, a)
	stop(t, a)
	must(t, a, "sh", "-c", "kill -KILL $(cat /run/rivulet/tunnel.pid)") // as after a boot: nothing of ours has a port
	release := map[string]func(){}
	for _, port := range []string{"tcp/6443", "tcp/10250", "tcp/7442", "udp/7442", "udp/1053"} {
		release[port] = hold(t, a, port)
	}
	mark := len(log(t, a, 0))
	start(t, a)
	const healed = 5 * time.Second
	// Nothing is begun beside what may be another Kubernetes.
	shows(t, a, 20*time.Second, "port 10250/tcp is taken by badinput", "stop that program", "port 1053/udp is taken by badinput", "(pid ")
	release["tcp/10250"]()
	shows(t, a, 20*time.Second, "port 6443/tcp is taken by badinput", "TCP 7442", "7442/udp is taken by badinput")
	release["udp/1053"]()
	release["tcp/6443"]()
	ready(t, a)
	pod(t, a, "no-peers-needed")
	text := shows(t, a, healed, "TCP 7442", "7442/udp")
	if strings.Contains(text, "1053") {
		t.Errorf("DNS has its port, yet the status says:\n%s", text)
	}
	if n := strings.Count(log(t, a, mark), "\n"); n > 60 {
		t.Errorf("%d lines in the log:\n%s", n, log(t, a, mark))
	}
	for port, sign := range map[string]string{"tcp/7442": "TCP 7442", "udp/7442": "7442/udp"} {
		release[port]()
		eventually(t, healed, func() error {
			if _, text := status(t, a); strings.Contains(text, sign) {
				return fmt.Errorf("%s is free, yet the status says:\n%s", port, text)
			}
			return nil
		})
	}
	peered(t, a)
	must(t, a, "rivulet", "kubectl", "delete", "pod", "no-peers-needed", "--wait=false")
}

const installed = "/var/badinput"

// install puts this program on the device's disk.
func install(t *testing.T, d *lab.Device) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path(installed), self, 0o755); err != nil && !strings.Contains(err.Error(), "busy") {
		t.Fatal(err)
	}
}

// hold takes a port on the device until release is called.
func hold(t *testing.T, d *lab.Device, port string) (release func()) {
	t.Helper()
	cmd, err := d.Command(t.Context(), installed, port)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "BADINPUT_ROLE=hold")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 200)
	if n, err := out.Read(said); err != nil || !strings.Contains(string(said[:n]), "held") {
		t.Fatalf("holding %s: %v %s", port, err, said[:n])
	}
	done := false
	release = func() {
		if !done {
			done = true
			in.Close()
			cmd.Wait()
		}
	}
	t.Cleanup(release)
	return release
}

// play is what this program does on a device.
func play(role string) {
	switch role {
	case "hold":
		network, port, _ := strings.Cut(os.Args[1], "/")
		var l io.Closer
		var err error
		if network == "udp" {
			l, err = net.ListenPacket("udp", ":"+port)
		} else {
			l, err = net.Listen("tcp", ":"+port)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		io.Copy(io.Discard, os.Stdin)
		l.Close() // until here the garbage collector leaves the port alone
	case "stranger":
		stranger(os.Args[1])
	}
}
