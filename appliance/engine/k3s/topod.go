package k3s

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/admission"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	apiapp "k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"rivulet/appliance/engine/controlplane"
)

// An API server of a virtual cluster reaches pods only through its host, which decides which pods are its own
// (appliance/vcluster). Nothing dials directly: no webhook, by Service or by URL, no conversion, no API service, no
// proxy of pods and Services. The kubelet client is an exception, so an egress selector, which includes it, cannot be
// used.

// hooksByHost changes the options for admission webhooks.
func hooksByHost(s *options.ServerRunOptions) {
	a := s.Admission.GenericAdmission
	a.Decorators = append(admission.Decorators{admission.DecoratorFunc(func(plugin admission.Interface, _ string) admission.Interface {
		if w, ok := plugin.(webhookinit.WantsAuthenticationInfoResolverWrapper); ok {
			w.SetAuthenticationInfoResolverWrapper(byHost) // around the existing one
		}
		return plugin
	})}, a.Decorators...)
}

// restByHost changes the configuration for the rest.
func restByHost(cfg *apiapp.Config) {
	cfg.KubeAPIs.ControlPlane.ProxyTransport.DialContext = dialPod // also the aggregator's
	conversions := &cfg.ApiExtensions.ExtraConfig.AuthResolverWrapper
	wrapped := *conversions
	*conversions = func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return byHost(wrapped(r))
	}
}

// byHost makes clients of webhooks by URL dial like those by Service.
func byHost(delegate webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForServiceFunc: delegate.ClientConfigForService,
		ClientConfigForFunc: func(at string) (*rest.Config, error) {
			c, err := delegate.ClientConfigFor(at)
			if err != nil {
				return nil, err
			}
			c = rest.CopyConfig(c) // it may be the API server's own
			c.Dial = dialPod
			return c, nil
		},
	}
}

// podTime is more than the host takes to answer.
const podTime = 10 * time.Second

// dialPod opens a connection to a pod of the virtual cluster. This side must send first.
func dialPod(ctx context.Context, _, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, podTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", controlplane.Host)
	if err != nil {
		return nil, fmt.Errorf("the host is not there: %w; see on it: rivulet status", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err := requestTunnel(c, addr); err != nil {
		stop()
		c.Close()
		return nil, err
	}
	if !stop() {
		c.Close()
		return nil, context.Cause(ctx)
	}
	return c, nil
}

func requestTunnel(c net.Conn, addr string) error {
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Host: addr}, Host: addr}
	if err := r.Write(c); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		return err
	}
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	return errors.Join(errors.New(strings.TrimSpace(string(text))), err)
}
