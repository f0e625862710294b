package lab

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// The devices of these tests run this test program under the name rivulet: a stand-in that has the processes, PID files
// and status of the real one, so that the lab itself can be tested in a minute.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(victimEnv) != "":
		os.Exit(victim(os.Getenv(victimEnv)))
	case os.Getenv(keeperEnv) != "":
		os.Exit(keeper(os.Getenv(keeperEnv)))
	case filepath.Base(os.Args[0]) == "rivulet":
		if err := standIn(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "rivulet stand-in:", err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

const (
	standInState = "/var/lib/rivulet"
	standInRun   = "/run/rivulet"
	standInPort  = 7442
)

func standIn(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no verb")
	}
	switch args[0] {
	case "run":
		return standInSupervisor()
	case "engine", "tunnel":
		if err := writePID(args[0]); err != nil {
			return err
		}
		for { // not select {}: with no other goroutine Go would call that a deadlock and end
			_ = syscall.Pause()
		}
	case "kubectl":
		return json.NewEncoder(os.Stdout).Encode(args[1:])
	}
	return fmt.Errorf("unknown verb %q", args[0])
}

// standInSupervisor counts its starts on disk, keeps an engine and a tunnel, and answers with its name on TCP.
func standInSupervisor() error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	ended := make(chan string, 2)
	if err := os.MkdirAll(standInState, 0o755); err != nil {
		return err
	}
	boots := filepath.Join(standInState, "boots")
	n, _ := os.ReadFile(boots)
	if err := os.WriteFile(boots, append(n, 'I'), 0o644); err != nil {
		return err
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(standInPort))
	if err != nil {
		return err
	}
	go func() {
		name, _ := os.Hostname()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, name)
			c.Close()
		}
	}()
	if err := writePID("supervisor"); err != nil {
		return err
	}
	if err := serveStatus(); err != nil {
		return err
	}
	ended <- "engine"
	ended <- "tunnel"
	for {
		select {
		case <-end:
			os.Remove(filepath.Join(standInRun, "supervisor.pid"))
			return os.WriteFile(filepath.Join(standInState, "orderly"), nil, 0o644)
		case what := <-ended:
			go func() {
				exec.Command("/opt/rivulet/rivulet", what).Run()
				ended <- what
			}()
		}
	}
}

// serveStatus answers on the supervisor's socket with the boots so far.
func serveStatus() error {
	_ = os.Remove(supervisorSocket) // of one that was killed
	l, err := net.Listen("unix", supervisorSocket)
	if err != nil {
		return err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		boots, err := os.ReadFile(filepath.Join(standInState, "boots"))
		if err != nil || r.URL.Path != "/v1/status" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `{"ready": true, "waiting": %q, "peers": [{"name":"x","state":"Connected"}], "virtualNodes": [{"name":"x","ready":true}]}`, boots)
	}))
	return nil
}

func writePID(what string) error {
	if err := os.MkdirAll(standInRun, 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(standInRun, what+".new")
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(standInRun, what+".pid"))
}
