package fakepeer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Fake is one that runs.
type Fake struct {
	cmd    *exec.Cmd
	in     io.Closer
	stderr bytes.Buffer
	report chan Report
}

// Start makes the command of a fake and lets do start it, in the network where it is
// to be. dir is for its sockets.
func Start(name, device, dir string, do func(start func() error) error) (*Fake, error) {
	f := &Fake{cmd: exec.Command("/proc/self/exe"), report: make(chan Report, 1)}
	f.cmd.Args = []string{Name}
	f.cmd.Env = append(os.Environ(), nameEnv+"="+name, deviceEnv+"="+device, dirEnv+"="+dir)
	f.cmd.Stderr = &f.stderr
	in, err := f.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("fakepeer: %w", err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("fakepeer: %w", err)
	}
	f.in = in
	if err := do(f.cmd.Start); err != nil {
		return nil, fmt.Errorf("fakepeer: %s: %w", name, err)
	}
	go func() {
		defer close(f.report)
		var r Report
		if json.NewDecoder(out).Decode(&r) == nil {
			f.report <- r
		}
	}()
	return f, nil
}

// Wait returns the fake's report, once it is connected.
func (f *Fake) Wait(ctx context.Context) (Report, error) {
	select {
	case r, ok := <-f.report:
		if !ok {
			return r, fmt.Errorf("%w: %s", errEnded, f.stderr.String())
		}
		return r, nil
	case <-ctx.Done():
		return Report{}, fmt.Errorf("fakepeer: %s is not connected: %w", f.cmd.Args[0], ctx.Err())
	}
}

// Stop ends it, with a goodbye.
func (f *Fake) Stop() {
	f.in.Close()
	f.cmd.Wait()
}
