/* What the page of `captioner serve` asks its server, with a token where the server needs one.
 *
 *   const client = new Client(() => askForToken());     told when the token is missing or wrong
 *   await client.get("models")     JSON
 *   await client.post("caption", new URLSearchParams({beam: 3}), blob, signal)     a Response
 *   await client.blob("examples/cat.jpg")
 * What fails is an Error whose message is fit to show. Addresses are relative, so that a proxy may put the page anywhere.
 */
"use strict";

const Client = (() => {
  const KEY = "captioner-token";
  const SILENT = "The server does not answer. Is `captioner serve` still running?";

  return class Client {
    constructor(onTokenNeeded) {
      this.onTokenNeeded = onTokenNeeded;
    }

    get token() {
      try {
        return sessionStorage.getItem(KEY);
      } catch {
        return null; // a browser that keeps nothing
      }
    }

    set token(text) {
      try {
        sessionStorage.setItem(KEY, text);
      } catch {
        // It must be given again after a reload.
      }
    }

    async fetch(path, options = {}) {
      const headers = { ...options.headers, ...(this.token ? { Authorization: `Bearer ${this.token}` } : {}) };
      let response;
      try {
        response = await fetch(path, { ...options, headers });
      } catch (error) {
        if (options.signal?.aborted) throw error;
        throw new Error(SILENT);
      }
      if (response.ok) return response;
      if (response.status === 401) this.onTokenNeeded();
      let reason = `the server answered ${response.status}`;
      try {
        reason = (await response.json()).error ?? reason;
      } catch {
        // What is not JSON comes from something in between, and its status must do.
      }
      throw new Error(reason.charAt(0).toUpperCase() + reason.slice(1) + ".");
    }

    async get(path) {
      return (await this.fetch(path)).json();
    }

    async blob(path) {
      return (await this.fetch(path)).blob();
    }

    post(path, settings, blob, signal) {
      const headers = { "Content-Type": "application/octet-stream" };
      return this.fetch(`${path}?${settings}`, { method: "POST", headers, body: blob, signal });
    }
  };
})();
