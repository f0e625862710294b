package k3s

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emicklei/go-restful/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	openapicontroller "k8s.io/apiextensions-apiserver/pkg/controller/openapi"
	openapiv3controller "k8s.io/apiextensions-apiserver/pkg/controller/openapiv3"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/klog/v2"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	apiapp "k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

type aggregator = aggregatorapiserver.APIAggregator

// openAPI creates the documents of an API server at the first request for them, and serves them from then on. It
// follows CustomResourceDefinitions and leaves out APIs of other servers.
type openAPI struct {
	v2 *common.Config
	v3 *common.OpenAPIV3Config

	ctx     context.Context
	servers []*genericapiserver.GenericAPIServer

	second, third func() http.Handler // v2 and v3, created once
	needed        atomic.Bool         // by somebody beside the API server
}

// newServer creates an API server that creates its documents when somebody needs them. Edit changes its configuration,
// around its handlers behind authentication.
func newServer(ctx context.Context, completed options.CompletedOptions, edit func(*apiapp.Config), around func(http.Handler) http.Handler) (*aggregator, *openAPI, error) {
	cfg, err := apiapp.NewConfig(completed)
	if err != nil {
		return nil, nil, err
	}
	edit(cfg)
	docs := &openAPI{v2: cfg.KubeAPIs.ControlPlane.Generic.OpenAPIConfig, v3: cfg.KubeAPIs.ControlPlane.Generic.OpenAPIV3Config}
	front := &cfg.Aggregator.GenericConfig.Config
	for _, generic := range []*genericapiserver.Config{cfg.KubeAPIs.ControlPlane.Generic, &cfg.ApiExtensions.GenericConfig.Config, front} {
		generic.SkipOpenAPIInstallation = true
	}
	front.OpenAPIConfig = nil
	chain := front.BuildHandlerChainFunc
	front.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return chain(around(docs.before(h)), c)
	}
	done, err := cfg.Complete()
	if err != nil {
		return nil, nil, err
	}
	server, err := apiapp.CreateServerChain(done)
	if err != nil {
		return nil, nil, err
	}
	docs.of(ctx, server.GenericAPIServer)
	return server, docs, nil
}

// need says that somebody beside the API server itself needs the documents.
func (o *openAPI) need() { o.needed.Store(true) }

// internal reports whether a request is that of the API server's mutating policies while nobody else has needed the
// documents. Every 5 s they read the index, and of it once what has a kind that a policy matches.
func (o *openAPI) internal(r *http.Request) bool {
	who, ok := request.UserFrom(r.Context())
	return ok && who.GetName() == loopbackUser && !o.needed.Load()
}

// serveInternal answers such requests: without custom resources, and each document is created for its request.
func (o *openAPI) serveInternal(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, ws := range o.containers() {
		path := "/openapi/v3" + ws.RootPath()
		if r.URL.Path != path {
			index.Paths[strings.TrimPrefix(ws.RootPath(), "/")] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: path}
		} else if spec, err := o.document(ws); err == nil {
			out.Encode(spec) //nolint:errcheck // it asks again
			return
		}
	}
	if r.URL.Path != "/openapi/v3" {
		http.NotFound(w, r)
		return
	}
	out.Encode(index) //nolint:errcheck // it asks again in 5 s
}

func (o *openAPI) document(ws *restful.WebService) (*spec3.OpenAPI, error) {
	return builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{ws}), o.v3)
}

// of sets the servers to document: the server and its delegates.
func (o *openAPI) of(ctx context.Context, s *genericapiserver.GenericAPIServer) {
	o.ctx = ctx
	for next := genericapiserver.DelegationTarget(s); next != nil; next = next.NextDelegate() {
		server, ok := next.(*genericapiserver.GenericAPIServer)
		if !ok {
			break
		}
		o.servers = append(o.servers, server)
	}
	crds := sync.OnceValues(o.crds)
	o.second = sync.OnceValue(func() http.Handler {
		m := mux.NewPathRecorderMux("openapi v2")
		all := restful.NewContainer()
		for _, c := range o.containers() {
			all.Add(c)
		}
		service, static := routes.OpenAPI{Config: o.v2}.InstallV2(all, m)
		if informer, _ := crds(); informer != nil {
			go openapicontroller.NewController(informer.Apiextensions().V1().CustomResourceDefinitions()).Run(static, service, ctx.Done())
			informer.Start(ctx.Done())
		}
		return m
	})
	o.third = sync.OnceValue(func() http.Handler {
		m := mux.NewPathRecorderMux("openapi v3")
		service := handler3.NewOpenAPIService()
		if err := service.RegisterOpenAPIV3VersionedService("/openapi/v3", m); err != nil {
			klog.Errorf("openapi: %v", err)
			return http.NotFoundHandler()
		}
		for _, ws := range o.containers() {
			spec, err := o.document(ws)
			if err != nil {
				klog.Errorf("openapi: %s: %v", ws.RootPath(), err)
				continue
			}
			service.UpdateGroupVersion(strings.TrimPrefix(ws.RootPath(), "/"), spec)
		}
		if informer, _ := crds(); informer != nil {
			go openapiv3controller.NewController(informer.Apiextensions().V1().CustomResourceDefinitions()).Run(service, ctx.Done())
			informer.Start(ctx.Done())
			o.awaitCRDs(informer, m)
		}
		return m
	})
}

// containers returns the web services of all servers, each path once.
func (o *openAPI) containers() (out []*restful.WebService) {
	seen := map[string]bool{}
	for _, s := range o.servers {
		for _, ws := range s.Handler.GoRestfulContainer.RegisteredWebServices() {
			if !seen[ws.RootPath()] {
				seen[ws.RootPath()] = true
				out = append(out, ws)
			}
		}
	}
	return out
}

func (o *openAPI) crds() (externalversions.SharedInformerFactory, error) {
	client, err := clientset.NewForConfig(o.servers[0].LoopbackClientConfig)
	if err != nil {
		klog.Errorf("openapi: %v", err)
		return nil, err
	}
	return externalversions.NewSharedInformerFactory(client, 0), nil
}

// awaitCRDs returns when the present definitions are in the index, or after a short time.
func (o *openAPI) awaitCRDs(f externalversions.SharedInformerFactory, m http.Handler) {
	crds := f.Apiextensions().V1().CustomResourceDefinitions()
	_ = wait.PollUntilContextTimeout(o.ctx, 10*time.Millisecond, 5*time.Second, true, func(context.Context) (bool, error) {
		all, err := crds.Lister().List(labels.Everything())
		if !crds.Informer().HasSynced() || err != nil {
			return false, nil
		}
		answer := httptest.NewRecorder()
		m.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/openapi/v3", nil))
		var index struct{ Paths map[string]any }
		if err := json.Unmarshal(answer.Body.Bytes(), &index); err != nil {
			return false, nil
		}
		for _, crd := range all {
			for _, v := range crd.Spec.Versions {
				if _, there := index.Paths["apis/"+crd.Spec.Group+"/"+v.Name]; v.Served && !there && established(crd) {
					return false, nil
				}
			}
		}
		return true, nil
	})
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

// before serves the documents, and passes other requests to h.
func (o *openAPI) before(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/openapi/v2":
			o.second().ServeHTTP(w, r)
		case r.URL.Path == "/openapi/v3", strings.HasPrefix(r.URL.Path, "/openapi/v3/"):
			if o.internal(r) {
				o.serveInternal(w, r)
				return
			}
			o.need()
			o.third().ServeHTTP(w, r)
		default:
			h.ServeHTTP(w, r)
		}
	})
}
