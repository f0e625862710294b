package resourcemetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// GroupVersion is that of the API, Resources are its resources.
var (
	GroupVersion = schema.GroupVersion{Group: group, Version: version}
	Resources    = resources.APIResources
)

// Handler serves the API inside the control plane of a virtual cluster; api has all rights at its API server. kubelet
// has the credentials for the kubelet APIs of its nodes, which are in the same process: on loopback, where an API
// server forwards no request. Answers are cached as by a Server, and nothing is measured without requests.
func Handler(api *rest.Config, kubelet rest.TLSClientConfig, log *slog.Logger) (http.Handler, error) {
	client, listed, err := clients(api)
	if err != nil {
		return nil, err
	}
	direct, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: kubelet})
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return newHandler(newSource(listed, kubelets(client, direct), log)), nil
}

// maxSummary bounds the size of a summary, bytes.
const maxSummary = 16 << 20

// kubelets fetches summaries directly from the kubelet addresses of nodes.
func kubelets(client kubernetes.Interface, direct *http.Client) fetch {
	return func(ctx context.Context, name string) (*stats.Summary, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
		if i < 0 {
			return nil, fmt.Errorf("node %s has no address", name)
		}
		at := net.JoinHostPort(node.Status.Addresses[i].Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+"/stats/summary?only_cpu_and_memory=true", nil)
		if err != nil {
			return nil, err
		}
		resp, err := direct.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the kubelet of %s answers %s", name, resp.Status)
		}
		var s stats.Summary
		if err := json.NewDecoder(io.LimitReader(resp.Body, maxSummary)).Decode(&s); err != nil {
			return nil, fmt.Errorf("what the kubelet of %s says: %w", name, err)
		}
		return &s, nil
	}
}

// RegisterLocal creates the APIService by which an API server finds the API in itself, and the rights to read it,
// unless there is one: an administrator may have replaced it.
func RegisterLocal(ctx context.Context, client kubernetes.Interface) error {
	s := Server{client: client}
	if _, err := s.registered(ctx); !apierrors.IsNotFound(err) {
		return err
	}
	if _, err := client.RbacV1().ClusterRoles().Apply(ctx, readerRole(), metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return fmt.Errorf("metrics: cluster role %s: %w", reader, err)
	}
	body, err := json.Marshal(object(nil, nil))
	if err == nil {
		err = client.Discovery().RESTClient().Post().AbsPath(apiServices).Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("metrics: APIService %s: %w", apiService, err)
	}
	return nil
}
