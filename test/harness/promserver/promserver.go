// Package promserver runs Debian's Prometheus on loopback for a test, and queries it. It has no state; the server's
// folder is the test's, and the server ends with the test.
package promserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// Tool returns the path of prometheus or promtool; without it the test is skipped.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s: test/deps prometheus", name)
	}
	return path
}

// Promtool runs promtool in a folder with input, and fails the test with what it prints unless it succeeds.
func Promtool(t testing.TB, dir, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command(Tool(t, "promtool"), args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewBufferString(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Server is a Prometheus that runs.
type Server struct{ url string }

// output is written by the process, and read by the test.
type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(p)
}

// Start runs a server with the configuration file DIR/prometheus.yml and its data in DIR/data, until the test ends.
func Start(t testing.TB, dir string, flags ...string) *Server {
	t.Helper()
	program := Tool(t, "prometheus")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	cmd := exec.Command(program, append([]string{"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + at, "--log.level=warn"}, flags...)...)
	printed := &output{}
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			printed.mu.Lock()
			defer printed.mu.Unlock()
			t.Logf("prometheus: %s", printed.String())
		}
	})
	s := &Server{url: "http://" + at}
	await.NoError(t, context.Background(), 30*time.Second, "prometheus is ready", func() error {
		select {
		case <-ended:
			return fmt.Errorf("prometheus ended: %s", printed.String())
		default:
		}
		resp, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s", resp.Status)
		}
		return nil
	})
	return s
}

// Sample is one series of an answer, with its last value.
type Sample struct {
	Labels map[string]string
	Value  float64
	Points int
}

// Query evaluates an expression at a time; zero is now.
func (s *Server) Query(expr string, at time.Time) ([]Sample, error) {
	args := url.Values{"query": {expr}}
	if !at.IsZero() {
		args.Set("time", strconv.FormatInt(at.Unix(), 10))
	}
	return s.ask("/api/v1/query", args)
}

// QueryRange evaluates an expression at each step of a time.
func (s *Server) QueryRange(expr string, from, to time.Time, step time.Duration) ([]Sample, error) {
	return s.ask("/api/v1/query_range", url.Values{"query": {expr}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}, "step": {step.String()}})
}

// TargetError returns the last error of the scrape of the only target; empty if it is up.
func (s *Server) TargetError() (health, problem string, err error) {
	resp, err := http.Get(s.url + "/api/v1/targets")
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	var got struct {
		Data struct {
			ActiveTargets []struct{ Health, LastError string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return "", "", err
	}
	if n := len(got.Data.ActiveTargets); n != 1 {
		return "", "", fmt.Errorf("there are %d targets", n)
	}
	return got.Data.ActiveTargets[0].Health, got.Data.ActiveTargets[0].LastError, nil
}

func (s *Server) ask(path string, args url.Values) ([]Sample, error) {
	resp, err := http.PostForm(s.url+path, args)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var got struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return nil, err
	}
	if got.Status != "success" {
		return nil, fmt.Errorf("prometheus: %s", got.Error)
	}
	var out []Sample
	for _, r := range got.Data.Result {
		points := r.Values
		if points == nil {
			points = [][2]any{r.Value}
		}
		text, _ := points[len(points)-1][1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("prometheus: %v is no number", points[len(points)-1][1])
		}
		out = append(out, Sample{r.Metric, value, len(points)})
	}
	return out, nil
}
