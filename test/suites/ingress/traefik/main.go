// Command traefik is an ingress controller for the tests: what Traefik makes of
// Ingresses, EndpointSlices, IngressClasses and TLS Secrets (its provider for
// Kubernetes, its rules and its certificates, as k3s ships them), with a reverse proxy
// from the standard library behind. What is left out is what no Ingress needs: other
// providers, ACME, plug-ins, and the middlewares.
//
// It answers on :8000 and, with TLS, on :8443, for Ingresses of class INGRESS_CLASS, and
// writes ADDRESS into their status.
package main

import (
	"context"
	"crypto/tls"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/middlewares/requestdecorator"
	muxer "github.com/traefik/traefik/v3/pkg/muxer/http"
	"github.com/traefik/traefik/v3/pkg/provider/kubernetes/ingress"
	"github.com/traefik/traefik/v3/pkg/safe"
	traefiktls "github.com/traefik/traefik/v3/pkg/tls"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	pool := safe.NewPool(ctx)
	defer pool.Stop()
	certificates := traefiktls.NewManager(nil)
	pool.GoCtx(certificates.Run)
	provider := &ingress.Provider{IngressClass: os.Getenv("INGRESS_CLASS")}
	if address := os.Getenv("ADDRESS"); address != "" {
		provider.IngressEndpoint = &ingress.EndpointIngress{IP: address}
	}
	parser, err := muxer.NewSyntaxParser()
	must(err)

	var now atomic.Pointer[muxer.Muxer]
	now.Store(muxer.NewMuxer(parser, nil))
	take := func(c *dynamic.Configuration) {
		routes := muxer.NewMuxer(parser, nil)
		for name, r := range c.HTTP.Routers {
			service := c.HTTP.Services[r.Service]
			if service == nil || service.LoadBalancer == nil {
				continue
			}
			priority := r.Priority
			if priority == 0 {
				priority = muxer.GetRulePriority(r.Rule)
			}
			if err := routes.AddRoute(r.Rule, r.RuleSyntax, priority, ingress.ProviderName, proxy(service.LoadBalancer.Servers)); err != nil {
				log.Printf("route %s is left out: %v", name, err)
			}
		}
		var found []*traefiktls.CertAndStores
		if c.TLS != nil {
			found = c.TLS.Certificates
		}
		certificates.UpdateConfigs(ctx, map[string]traefiktls.Store{"default": {}}, map[string]traefiktls.Options{"default": {}}, found)
		now.Store(routes)
		log.Printf("%d routes, %d services, %d certificates", len(c.HTTP.Routers), len(c.HTTP.Services), len(found))
	}
	take(&dynamic.Configuration{HTTP: &dynamic.HTTPConfiguration{}})

	told := make(chan dynamic.Message)
	must(provider.Init())
	must(provider.Provide(told, pool))
	host := requestdecorator.New(nil) // rules go by the host that it finds in a request
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { host.ServeHTTP(w, r, now.Load().ServeHTTP) })
	go func() { must(http.ListenAndServe(":8000", handler)) }()
	secure := &http.Server{Addr: ":8443", Handler: handler, TLSConfig: &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return certificates.Get("default", "default")
	}}}
	go func() { must(secure.ListenAndServeTLS("", "")) }()
	for {
		select {
		case m := <-told:
			take(m.Configuration)
		case <-ctx.Done():
			return
		}
	}
}

// proxy passes requests to the servers in turn, each over a connection of its own.
func proxy(servers []dynamic.Server) http.Handler {
	var next atomic.Uint32
	var targets []*url.URL
	for _, s := range servers {
		u, err := url.Parse(s.URL)
		must(err)
		targets = append(targets, u)
	}
	return &httputil.ReverseProxy{
		Transport: &http.Transport{DisableKeepAlives: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(targets[int(next.Add(1))%len(targets)])
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
