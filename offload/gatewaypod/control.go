package gatewaypod

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/offload/foreign"
)

// statusEvery is the interval of status queries to the pod, without other messages.
const statusEvery = 10 * time.Second

// control sends the configuration to the running pod after every change, and queries its status, over one connection
// through the API server.
func (g *Gateway) control(ctx context.Context) error {
	return g.retry(ctx, "control", func(ctx context.Context, pod string) error {
		defer g.setStatus(gatewayproto.Status{})
		if err := g.install(ctx, pod); err != nil {
			return err
		}
		news, stop := g.news.Changed()
		defer stop()
		transport := &http.Transport{MaxConnsPerHost: 1, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return g.dial(ctx, pod, gatewayproto.ControlPort)
		}}
		defer transport.CloseIdleConnections()
		client := foreign.Client(&http.Client{Transport: transport, Timeout: dialWithin + 10*time.Second}, g.kept.From)
		var told int64
		for {
			if want := g.wanted(); want.Generation != told {
				raw, err := json.Marshal(want)
				if err != nil {
					return fmt.Errorf("gateway: %w", err)
				}
				if _, err := request(ctx, client, http.MethodPut, "/v1/config", raw); err != nil {
					return err
				}
				told = want.Generation
			}
			raw, err := request(ctx, client, http.MethodGet, "/v1/status", nil)
			if err != nil {
				return err
			}
			var st gatewayproto.Status
			if err := json.Unmarshal(raw, &st); err != nil {
				return fmt.Errorf("gateway: status of %s: %w", pod, err)
			}
			g.setStatus(st)
			g.problem("control", nil)
			if !st.Configured {
				told = 0 // it has restarted
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-news:
			case <-time.After(statusEvery):
			}
		}
	})
}

func (g *Gateway) setStatus(st gatewayproto.Status) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = st
}

func request(ctx context.Context, client *http.Client, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://gateway"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("gateway: the pod refuses what it is told: %s", strings.TrimSpace(string(raw)))
	}
	return raw, nil
}
