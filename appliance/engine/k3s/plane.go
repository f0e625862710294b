package k3s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/endpoint"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	cmapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"rivulet/appliance/engine/controlplane"
	"rivulet/appliance/engine/controlplane/pods"
	"rivulet/appliance/engine/controlplane/roles"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/engine/kine"
)

// Identities of the process's own parts, whose requests do not count as use of the cluster.
const (
	loopbackUser = "system:apiserver"
	ownUser      = "rivulet:control-plane"
)

// planeGates are the engine's (package engine, flags.go), for the same reasons, without mutating policies: as in
// Kubernetes, they are off by default, because with them the API server reads its own OpenAPI documents every 5 s.
const planeGates = "APIServerIdentity=false,SizeBasedListCostEstimate=false"

// runPlane is the control plane of a virtual cluster: kine, kube-apiserver and controller manager in this process. It
// returns when ctx ends, or with an error.
func runPlane(ctx context.Context, p controlplane.Plane, own OwnAPI) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended, err := datastore.Begin(ctx, controlplane.Database, p.Boot)
	if err != nil {
		return err
	}
	// The datastore outlives the API server, which writes until its end.
	storing, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	var stored sync.WaitGroup
	defer func() { stopStore(); stored.Wait(); ended() }()
	if p.Datastore > 0 {
		p.Full = kine.Limit(p.Datastore, status.Errorf(codes.ResourceExhausted,
			"the datastore of virtual cluster %s is full (%d MiB): delete what is not needed; its owner gives it more with: rivulet vcluster set %s --datastore %dMi", p.Name, p.Datastore>>20, p.Name, 2*p.Datastore>>20)).Full
	}
	etcd, err := endpoint.Listen(storing, endpoint.Config{
		WaitGroup: &stored, NotifyInterval: 5 * time.Second, EmulatedETCDVersion: "3.5.13",
		CompactInterval: 5 * time.Minute, CompactTimeout: 30 * time.Second, CompactBatchSize: 100, PollBatchSize: 500,
	})
	if err != nil {
		return err
	}
	server, docs, err := planeServer(ctx, p, own, etcd.Endpoints)
	if err != nil {
		return err
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	loopback := server.GenericAPIServer.LoopbackClientConfig
	go func() {
		client, err := kubernetes.NewForConfig(loopback)
		if err == nil {
			err = usable(ctx, client, p.First)
		}
		if err == nil {
			err = roles.Apply(ctx, client)
		}
		if err != nil {
			cancel(err)
			return
		}
		foreignPolicies(ctx, loopback, docs, false)
		// A tenant must be able to empty a full datastore without free space in it.
		if err := own.Register(ctx, client); err != nil && ctx.Err() == nil {
			klog.Warningf("kubectl top and autoscalers have no measurements until the next start: %v", err)
		}
		if err := pods.Run(ctx, loopback, p, neighbours{client}, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}()
	go func() {
		if err := controllers(ctx); err != nil && ctx.Err() == nil {
			klog.Errorf("controller manager: %v", err)
			cancel(fmt.Errorf("controller manager: %w", err))
		}
	}()
	err = prepared.Run(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

func planeServer(ctx context.Context, p controlplane.Plane, own OwnAPI, etcd []string) (*aggregator, *openAPI, error) {
	completed, err := parsed(ctx, controlplane.Name, serverFlags(p, etcd), func(s *options.ServerRunOptions) {
		s.SecureServing.Listener = p.Listener
		hooksByHost(s)
	})
	if err != nil {
		return nil, nil, err
	}
	server, docs, err := newServer(ctx, completed, restByHost, func(h http.Handler) http.Handler { return counted(p, roomy(p.Full, h)) })
	if err != nil {
		return nil, nil, err
	}
	return server, docs, own.serve(server)
}

// parsed returns an API server's options, as its main program reads them; edit sets those without a flag.
func parsed(ctx context.Context, name string, flags []string, edit func(*options.ServerRunOptions)) (none options.CompletedOptions, err error) {
	s := options.NewServerRunOptions()
	sets := s.Flags()
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse(flags); err != nil {
		return none, err
	}
	edit(s)
	registry := s.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := registry.Set(); err != nil {
		return none, err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged // others in the process apply the same
	if err := logsapi.ValidateAndApply(s.Logs, nil); err != nil {
		return none, err
	}
	completed, err := s.Complete(ctx)
	if err != nil {
		return none, err
	}
	return completed, errors.Join(completed.Validate()...)
}

// counted counts requests that are not the process's own, and no forgotten watches. It runs after authentication.
func counted(p controlplane.Plane, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := request.UserFrom(r.Context())
		own := ok && (user.GetName() == loopbackUser || user.GetName() == ownUser)
		pod := ok && strings.HasPrefix(user.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
		if ok && !own && (pod || p.WatchKeepsAwake || !controlplane.Watches(r)) {
			defer p.Use.Begin()()
		}
		h.ServeHTTP(w, r)
	})
}

// creates reports whether a request creates an object: all POST requests except reviews and subresources.
func creates(r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	return ok && info.IsResourceRequest && info.Verb == "create" && info.Subresource == "" && info.APIGroup != "authentication.k8s.io" && info.APIGroup != "authorization.k8s.io"
}

// roomy refuses requests that would enlarge a full datastore, with a message for users. The datastore itself refuses
// the rest.
func roomy(full func(context.Context, int64) error, h http.Handler) http.Handler {
	if full == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if creates(r) {
			if err := full(r.Context(), max(r.ContentLength, 0)); err != nil {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusInsufficientStorage)
				_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
					Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage", Message: status.Convert(err).Message()})
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// serverFlags are kube-apiserver's; docs/design/vclusters.md explains each.
func serverFlags(p controlplane.Plane, etcd []string) []string {
	in := func(name string) string { return controlplane.TLS + "/" + name }
	return []string{
		"--etcd-servers=" + strings.Join(etcd, ","),
		"--advertise-address=" + p.Advertise.Addr().String(),
		"--cert-dir=" + controlplane.Data,
		"--tls-cert-file=" + in("apiserver.crt"), "--tls-private-key-file=" + in("apiserver.key"),
		"--client-ca-file=" + in("client-ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-jwks-uri=https://kubernetes.default.svc.cluster.local/openid/v1/jwks",
		"--service-account-signing-key-file=" + in("sa.key"), "--service-account-key-file=" + in("sa.pub"),
		"--kubelet-certificate-authority=" + in("kubelet-ca.crt"),
		"--kubelet-client-certificate=" + in("kubelet-client.crt"), "--kubelet-client-key=" + in("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--enable-aggregator-routing=true",
		"--proxy-client-cert-file=" + in("front-proxy.crt"), "--proxy-client-key-file=" + in("front-proxy.key"),
		"--requestheader-client-ca-file=" + in("front-proxy-ca.crt"), "--requestheader-allowed-names=" + controlplane.FrontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-cluster-ip-range=" + p.ServiceCIDR,
		"--authorization-mode=RBAC", "--anonymous-auth=false",
		"--disable-admission-plugins=ClusterTrustBundleAttest,TaintNodesByCondition",
		"--feature-gates=" + planeGates,
		"--endpoint-reconciler-type=none", "--event-ttl=15m", "--allow-privileged=true", "--profiling=false", "--watch-cache=false",
	}
}

// controllers runs the controller manager with one identity, because it is in the API server's process.
func controllers(ctx context.Context) error {
	cmd := cmapp.NewControllerManagerCommand()
	cmd.SetArgs([]string{
		"--kubeconfig=" + controlplane.TLS + "/control-plane.kubeconfig", "--leader-elect=false", "--secure-port=0", "--profiling=false",
		"--use-service-account-credentials=false", "--kube-api-qps=200", "--kube-api-burst=400",
		"--root-ca-file=" + controlplane.TLS + "/server-ca.crt", "--service-account-private-key-file=" + controlplane.TLS + "/sa.key",
		"--cluster-signing-kube-apiserver-client-cert-file=" + controlplane.TLS + "/users-ca.crt", "--cluster-signing-kube-apiserver-client-key-file=" + controlplane.TLS + "/users-ca.key", "--cluster-signing-duration=720h",
		"--feature-gates=" + planeGates,
		"--controllers=" + strings.Join([]string{"*",
			"-node-ipam-controller", "-node-lifecycle-controller", "-cloud-node-lifecycle-controller", "-service-lb-controller", "-node-route-controller",
			"-certificatesigningrequest-approving-controller",
			"-persistentvolume-attach-detach-controller", "-device-taint-eviction-controller", "-resourceclaim-controller", withoutTypeChecks,
		}, ","),
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return cmd.ExecuteContext(ctx)
}

// usable waits until pods can be created. Two of its hooks first sleep for 1 s, which is needed only for a new
// datastore.
func usable(ctx context.Context, client kubernetes.Interface, first bool) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		req := client.Discovery().RESTClient().Get().AbsPath("/readyz")
		if !first {
			req = req.Param("exclude", "poststarthook/rbac/bootstrap-roles").Param("exclude", "poststarthook/scheduling/bootstrap-system-priority-classes")
		}
		if req.Do(ctx).Error() != nil {
			return false, nil
		}
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}) // pods need it
		return err == nil, nil
	})
}
