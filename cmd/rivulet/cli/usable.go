package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
)

// answered is a program's error with another text.
type answered struct {
	error
	of error
}

func (e answered) Unwrap() error { return e.of }

// usable is the configuration for this device's API server, with its owner's rights, or an error with a cure.
func (c *common) usable(ctx context.Context) (*rest.Config, error) {
	kubeconfig := paths.Kubeconfig(c.dirs.State)
	f, err := os.Open(kubeconfig)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, answered{errors.New("only root reads the kubeconfig of this cluster; use sudo"), err}
	case errors.Is(err, fs.ErrNotExist):
		return nil, answered{c.away(ctx, "there is no cluster here yet"), err}
	case err != nil:
		return nil, fmt.Errorf("%w; see: rivulet doctor", err)
	}
	f.Close()
	cfg, err := engine.RESTConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%w; see: rivulet doctor", err)
	}
	if at, err := url.Parse(cfg.Host); err == nil {
		conn, err := net.DialTimeout("tcp", at.Host, time.Second)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil, answered{c.away(ctx, "the API server does not run now"), err}
		}
		if err == nil {
			conn.Close()
		}
	}
	return cfg, nil
}

// away is the error for a cluster that does not answer; while rivulet runs it has details.
func (c *common) away(ctx context.Context, what string) error {
	if _, err := api.Get(ctx, c.dirs.Run); errors.Is(err, api.ErrNotRunning) {
		return err
	}
	return errors.New(what + "; see: rivulet status")
}
