(function(){
  var tip=document.getElementById("tip"),list=document.getElementById("list");
  var marks=[],current=null;
  function places(path){
    if(!path.places&&path.dataset.t&&path.tagName==="use"){
      path.places=[{x:10*parseFloat(path.getAttribute("x")),y:10*parseFloat(path.getAttribute("y")),t:path.dataset.t}];
    }
    if(!path.places){
      var numbers=path.dataset.t.split(" "),found=path.getAttribute("d").match(/-?\d+ -?\d+/g)||[];
      path.places=found.map(function(pair,i){
        var xy=pair.split(" ");
        return {x:+xy[0],y:+xy[1],t:numbers[i]};
      });
    }
    return path.places;
  }
  function clear(){
    marks.forEach(function(mark){mark.remove()});
    marks=[];tip.style.display="none";current=null;
  }
  function mark(number){
    document.querySelectorAll(".plot").forEach(function(plot){
      var svg=plot.querySelector("svg");
      plot.querySelectorAll("svg [data-t]").forEach(function(path){
        places(path).forEach(function(p){
          if(p.t!==number)return;
          var one=document.createElementNS("http://www.w3.org/2000/svg","path");
          one.setAttribute("class","dot on");
          one.setAttribute("d","M"+p.x+" "+p.y+"h0");
          svg.appendChild(one);marks.push(one);
        });
      });
    });
  }
  function nearest(plot,event){
    var box=plot.querySelector("svg").getBoundingClientRect(),best=null,least=400;
    plot.querySelectorAll("svg [data-t]").forEach(function(path){
      places(path).forEach(function(p){
        var dx=box.left+p.x*box.width/1000-event.clientX,dy=box.top+p.y*box.height/1000-event.clientY;
        if(dx*dx+dy*dy<least){least=dx*dx+dy*dy;best=p.t}
      });
    });
    return best;
  }
  document.querySelectorAll(".plot").forEach(function(plot){
    plot.addEventListener("pointermove",function(event){
      var number=nearest(plot,event),row=number&&document.getElementById("t"+number);
      if(number!==current){
        clear();
        if(number){
          mark(number);current=number;
          if(row){
            tip.textContent=Array.prototype.map.call(row.firstElementChild.children,function(cell){
              return cell.textContent.trim();
            }).filter(Boolean).join(" · ");
            tip.style.display="block";
          }
        }
      }
      if(current){
        tip.style.left=Math.min(event.clientX+14,window.innerWidth-tip.offsetWidth-8)+"px";
        tip.style.top=Math.min(event.clientY+14,window.innerHeight-tip.offsetHeight-8)+"px";
      }
    });
    plot.addEventListener("pointerleave",clear);
    plot.addEventListener("click",function(){
      var row=current&&document.getElementById("t"+current);
      if(row){row.hidden=false;row.open=true;row.scrollIntoView({block:"center"})}
    });
  });
  document.querySelectorAll("[data-show]").forEach(function(button){
    button.addEventListener("click",function(){
      document.querySelectorAll("[data-show]").forEach(function(b){
        b.setAttribute("aria-pressed",b===button);
      });
      var kind=button.dataset.show;
      Array.prototype.forEach.call(list.children,function(row){
        row.hidden=kind!=="all"&&!row.classList.contains(kind);
      });
    });
  });
  document.querySelectorAll("[data-sort]").forEach(function(button){
    button.addEventListener("click",function(){
      var key=button.dataset.sort;
      document.querySelectorAll("[data-sort]").forEach(function(b){
        b.setAttribute("aria-pressed",b===button);
      });
      Array.prototype.slice.call(list.children).sort(function(a,b){
        return a.dataset[key]-b.dataset[key];
      }).forEach(function(row){list.appendChild(row)});
    });
  });
  function hint(){
    document.querySelectorAll(".hint").forEach(function(line){
      var box=line.nextElementSibling;
      line.hidden=box.scrollWidth<=box.clientWidth;
    });
  }
  hint();
  window.addEventListener("resize",hint);
  var open=document.getElementById("open");
  if(open)open.addEventListener("click",function(){
    var any=list.querySelector("details:not([open]):not([hidden])")!==null;
    Array.prototype.forEach.call(list.children,function(row){if(!row.hidden)row.open=any});
  });
})();
