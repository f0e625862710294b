package vcluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"rivulet/appliance/engine/controlplane"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

const hookPod = "10.42.0.5"

// hookServer is what a pod of a tenant serves: webhooks of both kinds, a conversion, and an API of its own. The PEM is of its authority.
func hookServer(t *testing.T, d *device) (*httptest.Server, []byte) {
	ca, err := pki{secret: t.TempDir()}.authority("hooks", t.TempDir())
	must(t, err)
	dir := t.TempDir()
	p := pki{secret: dir, now: time.Now()}
	must(t, p.leaf(dir, "server", time.Hour, ca, &x509.Certificate{Subject: pkix.Name{CommonName: "hook"}, DNSNames: []string{"hook.default.svc"}, IPAddresses: []net.IP{net.ParseIP(hookPod)}}))
	crt, err := readPair(dir+"/server.crt", dir+"/server.key")
	must(t, err)
	mux := http.NewServeMux()
	review := func(answer func(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var in admissionv1.AdmissionReview
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			in.Response = &admissionv1.AdmissionResponse{UID: in.Request.UID, Allowed: true}
			answer(in.Request, in.Response)
			in.Request = nil
			_ = json.NewEncoder(w).Encode(in)
		}
	}
	mux.Handle("/validate", review(func(q *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse) {
		if a.Allowed = q.Name != "bad"; !a.Allowed {
			a.Result = &metav1.Status{Message: "no bad ones"}
		}
	}))
	mux.Handle("/mutate", review(func(_ *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse) {
		a.Patch, a.PatchType = []byte(`[{"op":"add","path":"/metadata/annotations","value":{"hook":"was here"}}]`), ptr.To(admissionv1.PatchTypeJSONPatch)
	}))
	mux.HandleFunc("/convert", func(w http.ResponseWriter, r *http.Request) {
		var in apiextensionsv1.ConversionReview
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		in.Response = &apiextensionsv1.ConversionResponse{UID: in.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, o := range in.Request.Objects {
			var u unstructured.Unstructured
			_ = json.Unmarshal(o.Raw, &u.Object)
			u.SetAPIVersion(in.Request.DesiredAPIVersion)
			u.Object["converted"] = true
			o.Raw, _ = json.Marshal(u.Object)
			in.Response.ConvertedObjects = append(in.Response.ConvertedObjects, o)
		}
		in.Request = nil
		_ = json.NewEncoder(w).Encode(in)
	})
	mux.HandleFunc("/apis/made.example/v1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "made.example/v1",
			APIResources: []metav1.APIResource{{Name: "things", SingularName: "thing", Kind: "Thing", Namespaced: true, Verbs: metav1.Verbs{"get"}}}})
	})
	mux.HandleFunc("/apis/made.example/v1/who", func(w http.ResponseWriter, r *http.Request) {
		c, err := d.k.get("hal")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		proxies, err := readPair(c.secretDir()+"/front-proxy-ca.crt", c.secretDir()+"/front-proxy-ca.key")
		if err != nil || len(r.TLS.PeerCertificates) != 1 || r.TLS.PeerCertificates[0].CheckSignatureFrom(proxies.cert) != nil {
			http.Error(w, "a stranger", http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, "%s for %s of %s", r.TLS.PeerCertificates[0].Subject.CommonName, r.Header.Get("X-Remote-User"), r.Header.Get("X-Remote-Group"))
	})
	s := httptest.NewUnstartedServer(mux)
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, Certificates: []tls.Certificate{{Certificate: [][]byte{crt.cert.Raw}, PrivateKey: crt.key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// TestHooks: webhooks, conversions and API services behind a Service of the tenant are called at its pods, and nothing else is, whatever
// the tenant writes.
func TestHooks(t *testing.T) {
	t.Parallel()
	pods := new(addresses)
	d := newDevice(t, apiserver.Binary(t))
	server, ca := hookServer(t, d)
	dialed := make(chan string, 1000)
	d.k.cfg.Addresses = pods
	d.k.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialed <- addr
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	d.create(Spec{Name: "hal", Sleep: DefaultSleep})
	c, err := d.k.get("hal")
	must(t, err)
	pods.give(hookPod, c.record().ID)
	pods.give("10.42.0.6", "ben's")
	ctx, config := t.Context(), d.config("hal")
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	_, err = client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}, metav1.CreateOptions{})
	must(t, err)
	slices := client.DiscoveryV1().EndpointSlices("default")
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "hook", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](8443)}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{hookPod}}}}
	_, err = slices.Create(ctx, slice, metav1.CreateOptions{})
	must(t, err)
	at := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{CABundle: ca, Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "hook", Path: &path}}
	}
	rules := []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}
	// Of these alone: what the control plane itself makes goes on.
	only := &metav1.LabelSelector{MatchLabels: map[string]string{"hooked": ""}}
	none, fail := ptr.To(admissionregistrationv1.SideEffectClassNone), ptr.To(admissionregistrationv1.Fail)
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "validate.made.example", ClientConfig: at("/validate"), Rules: rules, ObjectSelector: only, FailurePolicy: fail, SideEffects: none, AdmissionReviewVersions: []string{"v1"}}}}
	validating, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, validating, metav1.CreateOptions{})
	must(t, err)
	_, err = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		Name: "mutate.made.example", ClientConfig: at("/mutate"), Rules: rules, ObjectSelector: only, FailurePolicy: fail, SideEffects: none, AdmissionReviewVersions: []string{"v1"}}}}, metav1.CreateOptions{})
	must(t, err)
	made := func(name string) (*corev1.ConfigMap, error) {
		return client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: only.MatchLabels}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	await.Empty(t, time.Minute, "both webhooks are called", func(context.Context) string { // they are in force a moment later
		m, err := made("good")
		if err != nil {
			return err.Error()
		}
		if m.Annotations["hook"] == "" {
			return "nothing was changed"
		}
		if _, err := made("bad"); err == nil || !strings.Contains(err.Error(), "no bad ones") {
			return fmt.Sprintf("a bad one: %v", err)
		}
		return ""
	})
	const times = 200
	began := time.Now()
	for range times {
		_, err := made("good")
		must(t, err)
	}
	t.Logf("a request with two webhooks: %s", time.Since(began)/times)

	gvr := schema.GroupVersionResource{Group: "kept.example", Version: "v1", Resource: "things"}
	t.Run("conversion", func(t *testing.T) {
		ext, err := apiextensions.NewForConfig(config)
		must(t, err)
		anything := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}}
		_, err = ext.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "things.kept.example"}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gvr.Group, Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Singular: "thing", Kind: "Thing", ListKind: "ThingList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: anything}, {Name: "v2", Served: true, Schema: anything}},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{ConversionReviewVersions: []string{"v1"},
				ClientConfig: &apiextensionsv1.WebhookClientConfig{CABundle: ca, Service: &apiextensionsv1.ServiceReference{Namespace: "default", Name: "hook", Path: ptr.To("/convert")}}}},
		}}, metav1.CreateOptions{})
		must(t, err)
		objects, err := dynamic.NewForConfig(config)
		must(t, err)
		await.Empty(t, time.Minute, "an object is made", func(ctx context.Context) string {
			_, err := objects.Resource(gvr).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kept.example/v1", "kind": "Thing", "metadata": map[string]any{"name": "one"}}}, metav1.CreateOptions{})
			if err != nil {
				return err.Error()
			}
			return ""
		})
		got, err := objects.Resource(gvr.GroupResource().WithVersion("v2")).Namespace("default").Get(ctx, "one", metav1.GetOptions{})
		if err != nil || got.GetAPIVersion() != "kept.example/v2" || got.Object["converted"] != true {
			t.Errorf("%v %v", got, err)
		}
	})

	services, err := aggregator.NewForConfig(config)
	must(t, err)
	who := func(ctx context.Context) string {
		raw, err := client.RESTClient().Get().AbsPath("/apis/made.example/v1/who").MaxRetries(0).DoRaw(ctx)
		return fmt.Sprintf("%s%v", raw, err)
	}
	t.Run("an API service", func(t *testing.T) {
		_, err := services.ApiregistrationV1().APIServices().Create(ctx, &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.made.example"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: "made.example", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: ca, Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "hook"}}}, metav1.CreateOptions{})
		must(t, err)
		await.Empty(t, time.Minute, "it answers, with the certificate and the user that the API server sends", func(ctx context.Context) string {
			if got, want := who(ctx), controlplane.FrontProxy+" for rivulet:object of rivulet:admin"; !strings.HasPrefix(got, want) {
				return fmt.Sprintf("%q, want %q", got, want)
			}
			return ""
		})
		if m, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{}); err != nil || m.Data["requestheader-client-ca-file"] == "" || !strings.Contains(m.Data["requestheader-allowed-names"], controlplane.FrontProxy) {
			t.Errorf("API services do not find whose word to take: %v %v", m, err)
		}
		await.Empty(t, time.Minute, "discovery has it", func(context.Context) string {
			list, err := client.Discovery().ServerResourcesForGroupVersion("made.example/v1")
			if err != nil || len(list.APIResources) != 1 {
				return fmt.Sprintf("%v %v", list, err)
			}
			_, all, err := client.Discovery().ServerGroupsAndResources()
			for _, l := range all {
				if l.GroupVersion == "made.example/v1" && err == nil {
					return ""
				}
			}
			return fmt.Sprintf("not among %d groups: %v", len(all), err)
		})
	})

	t.Run("nothing else", func(t *testing.T) {
		for len(dialed) > 0 {
			if at := <-dialed; at != hookPod+":8443" {
				t.Errorf("%s was called", at)
			}
		}
		const reason = "reaches nothing else"
		for _, address := range []string{"10.42.0.6", "10.43.0.1", "10.42.0.1", "192.168.1.1"} {
			slice.Endpoints[0].Addresses = []string{address}
			_, err := slices.Update(ctx, slice, metav1.UpdateOptions{})
			must(t, err)
			await.Empty(t, time.Minute, address+" is refused", func(ctx context.Context) string {
				server.CloseClientConnections() // of an answer before the slice was seen
				_, err := made("good")
				if api := who(ctx); err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(api, controlplane.FrontProxy) {
					return fmt.Sprintf("%v; %s", err, api)
				}
				return ""
			})
		}
		pods.give(hookPod, "") // nothing may be reached from here on
		for len(dialed) > 0 {
			<-dialed
		}
		for _, url := range []string{"https://127.0.0.1:10250/", "https://" + controlplane.InnerAddress + "/", "https://localhost/", "https://[::1]:6443/", "https://kubernetes.default.svc/", "https://example.org/x", "https://10.42.0.6:8443/", "https://169.254.169.254/"} {
			validating.Webhooks[0].ClientConfig = admissionregistrationv1.WebhookClientConfig{CABundle: ca, URL: &url}
			if validating, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, validating, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			_ = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, "hook", metav1.DeleteOptions{}) // gone after the first
			await.Empty(t, time.Minute, url+" is refused", func(context.Context) string {
				if _, err := made("good"); err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), strings.TrimSuffix(url, "/")) {
					return fmt.Sprint(err)
				}
				return ""
			})
		}
		if len(dialed) > 0 {
			t.Errorf("%s was called", <-dialed)
		}
		// By URL a pod of its own is called as well.
		pods.give(hookPod, c.record().ID)
		own := "https://" + hookPod + ":8443/validate"
		validating.Webhooks[0].ClientConfig.URL = &own
		_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, validating, metav1.UpdateOptions{})
		must(t, err)
		await.Empty(t, time.Minute, "its own pod by URL", func(context.Context) string {
			if _, err := made("bad"); err == nil || !strings.Contains(err.Error(), "no bad ones") {
				return fmt.Sprint(err)
			}
			return ""
		})
	})
}
