// Command references serves webhooks that do almost nothing over HTTPS, as references of `make bench`.
//
// /constant reads the body and answers a constant. /decode decodes the AdmissionReview and its Pod, and admits it.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
)

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID       string          `json:"uid"`
	Namespace string          `json:"namespace"`
	Operation string          `json:"operation"`
	Object    json.RawMessage `json:"object"`
	UserInfo  map[string]any  `json:"userInfo"`
}

type response struct {
	UID     string `json:"uid"`
	Allowed bool   `json:"allowed"`
}

// pod has the fields that admission webhooks read most; k8s.io/api decodes more.
type pod struct {
	Metadata struct {
		Name            string            `json:"name"`
		Labels          map[string]string `json:"labels"`
		Annotations     map[string]string `json:"annotations"`
		OwnerReferences []map[string]any  `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		Containers     []container       `json:"containers"`
		InitContainers []container       `json:"initContainers"`
		Volumes        []map[string]any  `json:"volumes"`
		Tolerations    []map[string]any  `json:"tolerations"`
		NodeSelector   map[string]string `json:"nodeSelector"`
		Affinity       map[string]any    `json:"affinity"`
	} `json:"spec"`
}

type container struct {
	Name         string           `json:"name"`
	Image        string           `json:"image"`
	Command      []string         `json:"command"`
	Args         []string         `json:"args"`
	Env          []map[string]any `json:"env"`
	VolumeMounts []map[string]any `json:"volumeMounts"`
	Resources    struct {
		Limits   map[string]string `json:"limits"`
		Requests map[string]string `json:"requests"`
	} `json:"resources"`
}

func admitted(body []byte) ([]byte, error) {
	var found review
	if err := json.Unmarshal(body, &found); err != nil {
		return nil, err
	}
	var object pod
	if err := json.Unmarshal(found.Request.Object, &object); err != nil {
		return nil, err
	}
	found.Response = &response{UID: found.Request.UID, Allowed: true}
	found.Request = nil
	return json.Marshal(found)
}

const answer = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":` +
	`{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","allowed":true}}`

func send(writer http.ResponseWriter, body []byte) {
	writer.Header().Set("Content-Type", "application/json")
	writer.Write(body)
}

func constant(writer http.ResponseWriter, request *http.Request) {
	io.Copy(io.Discard, request.Body)
	send(writer, []byte(answer))
}

func decode(writer http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err == nil {
		body, err = admitted(body)
	}
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	send(writer, body)
}

func ready(writer http.ResponseWriter, _ *http.Request) {
	send(writer, []byte("{}"))
}

// Arguments: PORT CERTIFICATE KEY.
func main() {
	http.HandleFunc("/constant", constant)
	http.HandleFunc("/decode", decode)
	http.HandleFunc("/readyz", ready)
	log.Fatal(http.ListenAndServeTLS("127.0.0.1:"+os.Args[1], os.Args[2], os.Args[3], nil))
}
